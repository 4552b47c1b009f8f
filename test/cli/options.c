/* Command lines: every way to write an option, and every wrong one named. */
#include "check.h"

#include <unistd.h>

#include "../../cli/options.h"

typedef struct arguments {
    bool flag;
    int number, choice;
    double real;
    const char *text;
    loom_option_list list;
} arguments;

static const char *const colours[] = {"red", "green", NULL};

static const loom_option options[] = {
    {"flag", 'f', LOOM_OPTION_FLAG, offsetof(arguments, flag), .help = "a flag"},
    {"number", 'n', LOOM_OPTION_INT, offsetof(arguments, number), .low = -5, .high = 5000, .takes = "N", .help = "a whole number"},
    {"real", 0, LOOM_OPTION_REAL, offsetof(arguments, real), .low = 0, .high = 1, .takes = "X", .help = "a real number"},
    {"text", 't', LOOM_OPTION_TEXT, offsetof(arguments, text), .takes = "TEXT", .help = "a text"},
    {"colour", 0, LOOM_OPTION_CHOICE, offsetof(arguments, choice), .choices = colours, .takes = "red|green", .help = "a colour"},
    {"set", 0, LOOM_OPTION_LIST, offsetof(arguments, list), .takes = "KEY=VALUE", .help = "several"},
    {0},
};

static const loom_command command = {.name = "test", .summary = "a test", .operands = "A [B]", .least = 1, .most = 2, .options = options};

/* What one command line gave. */
typedef struct outcome {
    bool goes_on;
    int exit_status;
    arguments arguments;
    loom_operands operands;
    char said[4096]; /* on stdout and stderr */
    char *argv[32];
} outcome;

static outcome parse_as(const loom_command *as, const char *const *words)
{
    static outcome o; /* operands.at points into it */
    FILE *said = tmpfile();
    int argc = 1, saved[2];

    o = (outcome){.argv = {(char *)"test"}, .arguments = {.number = 42}};
    while (words[argc - 1]) {
        o.argv[argc] = (char *)words[argc - 1];
        argc++;
    }
    fflush(NULL);
    for (int fd = 1; fd < 3; fd++) {
        saved[fd - 1] = dup(fd);
        dup2(fileno(said), fd);
    }
    o.goes_on = loom_options_parse(as, argc, o.argv, &o.arguments, &o.operands, &o.exit_status);
    fflush(NULL);
    for (int fd = 1; fd < 3; fd++) {
        dup2(saved[fd - 1], fd);
        close(saved[fd - 1]);
    }
    rewind(said);
    o.said[fread(o.said, 1, sizeof o.said - 1, said)] = '\0';
    fclose(said);
    return o;
}

#define PARSE(...) parse_as(&command, (const char *const[]){__VA_ARGS__, NULL})

static void expect_wrong(outcome o, const char *words)
{
    assert_false(o.goes_on);
    assert_int_equal(o.exit_status, 2);
    if (!strstr(o.said, words))
        fail_msg("\"%s\" is not in:\n%s", words, o.said);
}

static void options_may_be_written_in_all_usual_ways(void **state)
{
    outcome o = PARSE("-f", "--number", "7", "--real=0.25", "-t", "-x", "a", "--colour=green", "--set", "k=v", "--set=l=w", "b");

    (void)state;
    assert_true(o.goes_on && o.arguments.flag && o.arguments.number == 7 && o.arguments.real == 0.25 && o.arguments.choice == 1);
    assert_string_equal(o.arguments.text, "-x"); /* a value may begin with a dash */
    assert_int_equal(o.arguments.list.count, 2);
    assert_string_equal(o.arguments.list.at[1], "l=w");
    assert_int_equal(o.operands.count, 2);
    assert_string_equal(o.operands.at[0], "a");
    assert_string_equal(o.operands.at[1], "b");
    assert_null(o.operands.at[2]);
    o = PARSE("-n4", "a");
    assert_true(o.goes_on && o.arguments.number == 4);
    o = PARSE("a");
    assert_true(o.goes_on && o.arguments.number == 42 && !o.arguments.text); /* not given: as the command set it */
}

static void numbers_follow_the_rule_of_the_files(void **state)
{
    (void)state;
    assert_int_equal(PARSE("--number=1e3", "a").arguments.number, 1000);
    assert_int_equal(PARSE("--number=-5", "a").arguments.number, -5);
    expect_wrong(PARSE("--number=4k", "a"), "--number takes a whole number from -5 to 5000, not \"4k\"");
    expect_wrong(PARSE("--number=", "a"), "not \"\"");
    expect_wrong(PARSE("--number=1.5", "a"), "whole number");
    expect_wrong(PARSE("--number=5001", "a"), "--number=5001 is out of range; -5 to 5000 are possible");
    expect_wrong(PARSE("--real=.nan", "a"), "out of range");
}

static void dashes_end_the_options(void **state)
{
    outcome o = PARSE("--", "--flag", "-");

    (void)state;
    assert_true(o.goes_on && !o.arguments.flag);
    assert_int_equal(o.operands.count, 2);
    assert_string_equal(o.operands.at[0], "--flag");
}

static void another_programs_options_are_left_alone(void **state)
{
    loom_command starter = command;

    starter.operands_end_options = true;
    starter.most = -1;
    outcome o = parse_as(&starter, (const char *const[]){"-n", "2", "program", "--number", "9", "--", "-f", NULL});
    (void)state;
    assert_true(o.goes_on && o.arguments.number == 2 && !o.arguments.flag);
    assert_int_equal(o.operands.count, 5);
    assert_string_equal(o.operands.at[3], "--");
    assert_null(o.operands.at[5]);
    o = parse_as(&starter, (const char *const[]){"-n", "2", "--", "program", "-f", NULL});
    assert_int_equal(o.operands.count, 2);
    assert_string_equal(o.operands.at[0], "program");
    assert_null(o.operands.at[2]);
}

static void all_problems_are_said_at_once(void **state)
{
    outcome o = PARSE("--nubmer=3", "--flag=1", "--colour=gren", "-z", "a", "b", "c", "--text");
    const char *const words[] = {"--nubmer is not known; did you mean --number", "--flag takes no value", "--colour=gren is none of its values (red|green); did you mean green",
                                 "-z is not known", "\"c\" is too much", "--text needs a value: TEXT"};

    (void)state;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        expect_wrong(o, words[i]);
    expect_wrong(PARSE("-f"), "its operand is missing: rankloom test A [B]");
}

static void help_is_no_failure(void **state)
{
    outcome o = PARSE("--number", "wrong", "--help");

    (void)state;
    assert_false(o.goes_on);
    assert_int_equal(o.exit_status, 0);
    for (const loom_option *option = options; option->name; option++)
        assert_non_null(strstr(o.said, option->help));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_may_be_written_in_all_usual_ways),
        cmocka_unit_test(numbers_follow_the_rule_of_the_files),
        cmocka_unit_test(dashes_end_the_options),
        cmocka_unit_test(another_programs_options_are_left_alone),
        cmocka_unit_test(all_problems_are_said_at_once),
        cmocka_unit_test(help_is_no_failure),
    };

    return cmocka_run_group_tests_name("options", tests, NULL, NULL);
}
