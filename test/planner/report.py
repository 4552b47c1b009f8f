"""The report of a plan and the pictures, read back: well-formed, nothing from outside, reachable by keyboard and screen reader, and its numbers are those
of the plan's JSON.

    report.py RANKLOOM MODELS CLUSTERS
"""
import json
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from pathlib import Path

SVG, HTML = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xhtml}"
failures = []


def expect(right, what):
    if not right:
        failures.append(what)
        print("FAILED:", what)


def near(a, b, tolerance):
    return abs(a - b) <= tolerance


def words(element):
    return " ".join("".join(element.itertext()).split())


def numbers_of(row):
    return [float(words(cell).split()[0]) for cell in row.iter(HTML + "td") if re.match(r"^-?[0-9.]+( %)?$", words(cell))]


# --- what holds of every document ------------------------------------------------------------------------------------------------

def nothing_from_outside(root, name):
    for element in root.iter():
        tag = element.tag.split("}")[1]
        expect(tag not in ("script", "img", "link", "iframe", "object", "embed", "image", "use", "foreignObject"), f"{name}: a {tag}")
        for key, value in element.attrib.items():
            expect(not re.search(r"(?i)\b[a-z]+://|^//|url\(|javascript:", value), f"{name}: {key}={value[:60]}")
            expect(not key.lower().startswith("on"), f"{name}: a handler {key}")
        if tag == "style":
            expect(not re.search(r"(?i)url\(|@import|://", element.text or ""), f"{name}: a style sheet that fetches")


def is_a_picture(svg, name):
    expect(svg.tag == SVG + "svg" and svg.get("role") == "img", f"{name}: no picture")
    expect(svg[0].tag == SVG + "title" and words(svg[0]), f"{name}: a picture without a name")
    left, top, wide, high = map(float, svg.get("viewBox").split())
    expect((left, top) == (0, 0) and wide == float(svg.get("width")) and high == float(svg.get("height")), f"{name}: view box")
    for shape in svg.iter():
        for key in ("x", "y", "cx", "cy", "x1", "x2", "y1", "y2"):
            if shape.get(key):
                most = wide if "x" in key else high
                expect(-0.5 <= float(shape.get(key)) <= most + 0.5, f"{name}: {shape.tag} outside of it, {key}={shape.get(key)}")
        for key in ("width", "height", "r"):
            expect(float(shape.get(key) or 0) >= 0, f"{name}: negative {key}")
    expect("prefers-color-scheme: dark" in "".join(style.text for style in svg.iter(SVG + "style")), f"{name}: no dark colours")


# --- the page -----------------------------------------------------------------------------------------------------------------------

def relative_luminance(colour):
    channels = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def colours_are_readable(root):
    style = next(root.iter(HTML + "style")).text
    schemes = re.findall(r":root \{([^}]*)\}", style)
    expect(len(schemes) == 2, "light and dark")
    for scheme in schemes:
        colour = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", scheme))
        for ink in ("text", "quiet", "link"):
            for paper in ("ground", "panel"):
                a, b = sorted((relative_luminance(colour[ink]), relative_luminance(colour[paper])))
                expect((b + 0.05) / (a + 0.05) >= 4.5, f"contrast of {ink} on {paper}")


def is_accessible(root):
    ids = [e.get("id") for e in root.iter() if e.get("id")]
    expect(len(ids) == len(set(ids)), "an id twice")
    expect(root.get("lang") == "en" and words(root.find(f"{HTML}head/{HTML}title")), "language and title")
    metas = {m.get("name") or m.get("http-equiv"): m.get("content") for m in root.iter(HTML + "meta")}
    expect("width=device-width" in metas.get("viewport", "") and "default-src 'none'" in metas.get("Content-Security-Policy", ""), "viewport and policy")
    levels = [e.tag[-1] for e in root.iter() if e.tag in (HTML + "h1", HTML + "h2", HTML + "h3")]
    expect(levels[:1] == ["1"] and set(levels[1:]) <= {"2"}, f"headings {levels}")
    for e in root.iter():
        if e.get("aria-labelledby"):
            expect(e.get("aria-labelledby") in ids, f"label {e.get('aria-labelledby')} is nowhere")
        if e.tag == HTML + "a":
            expect(e.get("href", "")[1:] in ids and e.get("href")[0] == "#" and words(e), f"link {e.get('href')}")
        if e.get("class") == "scroll":
            expect(e.get("tabindex") == "0" and e.get("role") == "region", "a frame that the keyboard cannot reach")
        if e.tag == HTML + "table":
            expect(words(e.find(HTML + "caption")), "a table without a caption")
            expect(all(th.get("scope") in ("row", "col") for th in e.iter(HTML + "th")), "a header cell without scope")
            cells = {len(row) for row in e.iter(HTML + "tr")}
            expect(len(cells) == 1, f"rows of {cells} cells")
    for wide in [e for tag in ("table", "pre") for e in root.iter(HTML + tag)] + list(root.iter(SVG + "svg")):
        expect(any(wide in list(frame) for frame in root.iter() if frame.get("class") == "scroll"), "something wide outside of a frame")


def section(root, name):
    for s in root.iter(HTML + "section"):
        if s.get("aria-labelledby") == name:
            return s
    expect(False, f"no section {name}")
    return xml.Element(HTML + "section")


def tables_are_the_plan(root, plan):
    best = plan["layouts"][0]
    tables = list(section(root, "layouts").iter(HTML + "table"))
    expect(len(tables) == (2 if "front" in plan else 1), "tables of layouts")
    for table, name in zip(tables, ("layouts", "front")):
        rows = list(table.find(HTML + "tbody"))
        expect(len(rows) == len(plan[name]), f"{len(rows)} rows of {len(plan[name])} {name}")
        for row, layout in zip(rows, plan[name]):
            devices, step, tokens, mfu, bubble, memory = numbers_of(row)
            expect(devices == layout["tp"] * layout["cp"] * layout["pp"] * layout["dp"], "devices")
            expect(near(step, layout["step_time_s"], 1e-3 * step) and near(tokens, layout["tokens_per_s_per_gpu"], 0.51) and near(mfu, 100 * layout["mfu"], 0.051)
                   and near(bubble, 100 * layout["bubble"], 0.051) and near(memory, max(layout["memory_gib_per_stage"]), 0.051), f"row {words(row)}")
            expect(f"tp{layout['tp']} " in words(row) and f"pp{layout['pp']} " in words(row), f"row {words(row)} names another layout")
    for row in section(root, "time").iter(HTML + "tr"):
        if row[0].get("scope") == "row":
            expect(near(numbers_of(row)[0], best["breakdown"][words(row[0])], 1e-4), f"time {words(row)}")
    rows = [row for row in section(root, "memory").iter(HTML + "tr") if row[0].get("scope") == "row"]
    expect(len(rows) == best["pp"], "a row a stage")
    for row, total, parts in zip(rows, best["memory_gib_per_stage"], best["memory_parts_per_stage"]):
        layers, in_flight, weights, gradients, optimizer, activations, rest, told, share = numbers_of(row)
        expect(layers == parts["layers"] and in_flight == parts["chunks_in_flight"] and near(weights, parts["weights"] / 2**30, 0.006)
               and near(told, total, 0.006) and near(weights + gradients + optimizer + activations + rest, told, 0.03)
               and near(share, 100 * total / best["memory_limit_gib"], 0.06), f"memory {words(row)}")
    said = words(root.find(f"{HTML}body"))
    for text in (plan["layouts"][0]["binding"], plan["runner_up"], f"{plan['search']['legal']} legal layouts"):
        expect(not text or " ".join(text.split()) in said, f"the page does not say: {text}")


def curve_tops(svg):
    """Of each stage the highest point of its curve, and how high its limit lies, both above its floor, in one unit."""
    tops = []
    for path, rect, limit in zip([p for p in svg.iter(SVG + "path") if p.get("class") == "kept"], [r for r in svg.iter(SVG + "rect") if r.get("class") == "always"][1:],
                                 [line for line in svg.iter(SVG + "line") if line.get("class") == "limit"][1:]):
        floor = float(rect.get("y")) + float(rect.get("height"))
        tops.append((floor - min(float(v) for v in re.findall(r"V([0-9.]+)", path.get("d"))), floor - float(limit.get("y1"))))
    return tops


def nothing_that_fits_is_faster(root):
    """Of the whole space. The search is exact in closed form and finalists are simulated, so a corner of it need not obey."""
    dots = [c for c in section(root, "search").iter(SVG + "circle") if c.find(SVG + "title") is not None]
    fastest = max(float(c.get("cy")) for c in dots if c.get("class") == "best")
    expect(all(float(c.get("cy")) <= fastest + 0.11 for c in dots if "out" not in c.get("class")), "a layout that fits is faster than the best")


def pictures_are_the_plan(root, plan):
    best = plan["layouts"][0]
    for name in ("timeline", "over-time", "ranks", "search"):
        for svg in section(root, name).iter(SVG + "svg"):
            is_a_picture(svg, name)
    bars = [r for r in section(root, "timeline").iter(SVG + "rect") if (r.get("class") or " ")[0] == "k" and r.find(SVG + "title") is not None]
    passes = 3 if best["schedule"].startswith("zb") else 2
    expect(len(bars) > 0 and len(bars) % (passes * best["pp"] * best["vpp"]) == 0, f"{len(bars)} bars")
    tops = curve_tops(next(section(root, "over-time").iter(SVG + "svg")))
    expect(len(tops) == best["pp"], "a curve a stage")
    for (top, limit), total in zip(tops, best["memory_gib_per_stage"]):
        expect(near(top / limit, total / best["memory_limit_gib"], 0.01), f"a curve ends at {top / limit:.3f} of the limit")
    cells = [t for t in section(root, "ranks").iter(SVG + "title") if words(t).startswith("rank ")]
    expect(len(cells) == min(512, best["tp"] * best["cp"] * best["pp"] * best["dp"]), f"{len(cells)} cells")
    dots = [c for c in section(root, "search").iter(SVG + "circle") if c.find(SVG + "title") is not None]
    numbered = [c for c in dots if c.get("class") == "best"]
    expect(len(numbered) == len(plan["layouts"]) and len(dots) > 100, f"{len(numbered)} best of {len(dots)} dots")
    expect(any("tp: " in (pre.text or "") for pre in section(root, "file").iter(HTML + "pre")), "no layout file")


def check_page(rankloom, folder, arguments):
    page = folder / "report.html"
    made = subprocess.run([rankloom, "plan", *arguments, "--format", "json", "--html", page], capture_output=True, text=True)
    expect(made.returncode == 0, f"plan {arguments}: {made.stderr}")
    if made.returncode:
        return
    root, plan = xml.parse(page).getroot(), json.loads(made.stdout)
    nothing_from_outside(root, "page")
    colours_are_readable(root)
    is_accessible(root)
    tables_are_the_plan(root, plan)
    pictures_are_the_plan(root, plan)
    if "--fix" not in arguments:
        nothing_that_fits_is_faster(root)
    before = page.read_bytes()
    subprocess.run([rankloom, "plan", *arguments, "--html", page], capture_output=True, check=True)
    expect(before == page.read_bytes(), "the same plan gave another page")


def check_picture(rankloom, folder, arguments, contains):
    path = folder / "picture.svg"
    made = subprocess.run([rankloom, "draw", *arguments, "-o", path], capture_output=True, text=True)
    expect(made.returncode == 0, f"draw {arguments}: {made.stderr}")
    if made.returncode:
        return
    root = xml.parse(path).getroot()
    is_a_picture(root, " ".join(map(str, arguments)))
    nothing_from_outside(root, "picture")
    expect(contains in words(root), f"draw {arguments}: \"{contains}\" is not in it")


def main():
    rankloom, models, clusters = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    on_16 = ["-t", clusters / "h100-2x8.yaml"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        check_page(rankloom, folder, [models / "dense-8b.yaml", *on_16, "--pareto"])
        check_page(rankloom, folder, [models / "dense-8b.yaml", *on_16, "--fix", "pp=4", "--fix", "schedule=interleaved"])
        check_page(rankloom, folder, [models / "moe-24l.yaml", "-t", clusters / "nvl72-1rack.yaml", "--max-gpus", "32", "--fix", "schedule=zb-v"])
        hopeless = folder / "nothing.html"
        made = subprocess.run([rankloom, "plan", models / "moe-256e.yaml", "-t", clusters / "single-3x24g.yaml", "--html", hopeless], capture_output=True, text=True)
        expect(made.returncode == 2 and "no layout" in words(xml.parse(hopeless).getroot()), f"a plan without layouts: {made.stderr}")
        layout = ["tp=2,pp=4,dp=2", "--model", models / "dense-8b.yaml", *on_16]
        check_picture(rankloom, folder, layout, "4 stages x 1 chunk")
        check_picture(rankloom, folder, ["--what", "memory", *layout], "activations in flight")
        check_picture(rankloom, folder, ["--what", "search", models / "dense-8b.yaml", *on_16, "--sample", "50"], "50 layouts drawn at random")
        (folder / "layout.yaml").write_text("{tp: 2, pp: 4, dp: 2, global_batch: 16}\n")
        check_picture(rankloom, folder, ["--what", "map", folder / "layout.yaml", *on_16], "rank 15: tp1 cp0 dp1 pp3")
        check_picture(rankloom, folder, [folder / "layout.yaml"], "8 micro-batches, idle 27.3 % of the step")
    print(f"{len(failures)} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
