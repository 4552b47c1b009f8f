#include "core/svg.h"

static const char shared[] =
    ".ground { fill: #ffffff } text { fill: #24292f } .title { font-size: 15px; font-weight: 600 } .n { fill: #1b1f24; text-anchor: middle }\n"
    ".axis { stroke: #8c959f } .faint { stroke: #d8dee4 } .end { text-anchor: end } .middle { text-anchor: middle }\n"
    "@media (prefers-color-scheme: dark) { .ground { fill: #0d1117 } text { fill: #e6edf3 } .n { fill: #1b1f24 } .faint { stroke: #30363d } }\n";

void loom_svg_open(loom_text *out, int width, int height, const char *title, const char *style)
{
    loom_text_add(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\" "
                       "font-family=\"system-ui, sans-serif\" font-size=\"12\">\n<title>", width, height, width, height);
    loom_text_add_xml(out, title);
    loom_text_add(out, "</title>\n<style>\n%s%s</style>\n<rect class=\"ground\" width=\"%d\" height=\"%d\"/>\n<text class=\"title\" x=\"8\" y=\"22\">", shared, style,
                  width, height);
    loom_text_add_xml(out, title);
    loom_text_add(out, "</text>\n");
}

void loom_svg_close(loom_text *out)
{
    loom_text_add(out, "</svg>\n");
}
