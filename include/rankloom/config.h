/* Strict YAML and JSON: a small tree that remembers line and column, and typed reading that collects every problem of a file.
 *
 * Use: parse, then read fields through a loom_reader, which notes each problem and which keys were asked for; at the end
 * loom_reader_finish() turns all problems (unknown keys with the nearest known one included) into one status and message. */
#ifndef RANKLOOM_CONFIG_H
#define RANKLOOM_CONFIG_H

#include <rankloom/status.h>
LOOM_BEGIN

typedef struct loom_config loom_config; /* a parsed document; owns its nodes */
typedef struct loom_node loom_node;     /* borrowed from its document */

typedef enum loom_node_kind { LOOM_NODE_NULL, LOOM_NODE_SCALAR, LOOM_NODE_LIST, LOOM_NODE_MAP } loom_node_kind;

/* YAML 1.1 core (libyaml) without its traps. Errors with line and column are: a key given twice (both lines are named; an explicit key does
 * override one merged by `<<`), more than 100,000 values (an alias counts for all it stands for, so an alias bomb ends early), nesting above 64
 * levels, more than 1000 anchors, a tab as indentation, a tag (!…), a second document, a ${reference} of another tool. An empty value, ~ and
 * null are the same: absent. Files above 64 MiB are refused.
 *
 * JSON goes through a parser of its own: RFC 8259, strict, same bounds, same tree. A source that ends in ".json" is JSON, in ".yaml" or ".yml" YAML; any
 * other is JSON if its text begins with '{'. `source` names the text in messages (a path). */
LOOM_API loom_status loom_config_parse(const char *source, const char *text, size_t bytes, loom_config **config);
LOOM_API loom_status loom_config_load(const char *path, loom_config **config);
LOOM_API void loom_config_free(loom_config *config); /* accepts NULL */
LOOM_API const loom_node *loom_config_root(const loom_config *config);
LOOM_API const char *loom_config_source(const loom_config *config);

/* Sets "a.b.c=value" (value is YAML), as on a command line, creating maps on the way. Messages name the assignment. */
LOOM_API loom_status loom_config_override(loom_config *config, const char *assignment);

LOOM_API loom_node_kind loom_node_get_kind(const loom_node *node); /* NULL node: LOOM_NODE_NULL */
LOOM_API int loom_node_line(const loom_node *node);                /* from 1 */
LOOM_API int loom_node_column(const loom_node *node);
LOOM_API size_t loom_node_count(const loom_node *node); /* children of a list or map, else 0 */
LOOM_API const loom_node *loom_node_at(const loom_node *node, size_t index);
LOOM_API const char *loom_node_key_at(const loom_node *node, size_t index); /* of a map */
LOOM_API const loom_node *loom_node_get(const loom_node *node, const char *key);
LOOM_API const char *loom_node_text(const loom_node *node); /* of a scalar, else NULL */
LOOM_API bool loom_node_quoted(const loom_node *node);

/* One reader per file. A reading function returns true and fills *value when the key is there and right; when it is absent or null it leaves
 * *value (the caller's default) and returns false; when it is wrong it notes the problem and returns false. `map` may be NULL (an
 * absent section). The type comes from the field, never from the look of the text, and there is one rule for all fields:
 *
 *   integers  64 bits: 4096, -1, 4_096 (an underscore between two digits), 1e3, 1.28e2, 4096.0. Refused: 4096.5, 4k, 1,000, 010 (octal to
 *             some), 0x10, 1:30, "4096" in quotes.
 *   reals     1e-5, 1E-5, +1e-5, .5e-3, 5.e-3, 1_000.5, 3; .inf and -.inf where the range has them; .nan never
 *   booleans  true True TRUE false False FALSE. Refused: yes, no, on, off (YAML 1.1 and 1.2 disagree on them), 1, 0, "true" in quotes
 *   texts     any scalar, in quotes or not */
typedef struct loom_reader loom_reader;
LOOM_API loom_status loom_reader_open(const loom_config *config, loom_reader **reader);
LOOM_API const loom_node *loom_read_map(loom_reader *reader, const loom_node *map, const char *key);
LOOM_API const loom_node *loom_read_list(loom_reader *reader, const loom_node *map, const char *key);
LOOM_API bool loom_read_i64(loom_reader *reader, const loom_node *map, const char *key, int64_t low, int64_t high, int64_t *value);
LOOM_API bool loom_read_int(loom_reader *reader, const loom_node *map, const char *key, int low, int high, int *value);
LOOM_API bool loom_read_f64(loom_reader *reader, const loom_node *map, const char *key, double low, double high, double *value);
LOOM_API bool loom_read_bool(loom_reader *reader, const loom_node *map, const char *key, bool *value);
LOOM_API bool loom_read_text(loom_reader *reader, const loom_node *map, const char *key, const char **value); /* borrowed from the document */
/* `names` is NULL-terminated; *value is the index. The problem of a wrong word lists them and names the nearest. */
LOOM_API bool loom_read_choice(loom_reader *reader, const loom_node *map, const char *key, const char *const *names, int *value);
/* Lists of at most `capacity`. One wrong element makes the list wrong: *count stays, and `values` may be half filled. */
LOOM_API bool loom_read_i64_list(loom_reader *reader, const loom_node *map, const char *key, int64_t low, int64_t high, size_t capacity, int64_t *values, size_t *count);
LOOM_API bool loom_read_f64_list(loom_reader *reader, const loom_node *map, const char *key, double low, double high, size_t capacity, double *values, size_t *count);
/* Parses the scalar `node` itself (an element of a list, a value of either of two kinds) by the same rules; notes nothing. */
LOOM_API bool loom_node_as_i64(const loom_node *node, int64_t *value);
LOOM_API bool loom_node_as_f64(const loom_node *node, double *value);
/* The key is required: notes "key missing" with the line of its map when it is not there. */
LOOM_API void loom_require(loom_reader *reader, const loom_node *map, const char *key);
/* Notes a problem of the caller's own at `node` (its line and column are put in front). */
LOOM_API void loom_reader_problem(loom_reader *reader, const loom_node *node, const char *format, ...) LOOM_PRINTF(3, 4);
/* Keys nobody asked for may stay in this map (a file of others, a section read elsewhere). Keys starting with "x-" are always free. */
LOOM_API void loom_reader_allow_unknown(loom_reader *reader, const loom_node *map);
LOOM_API int loom_reader_problems(const loom_reader *reader);
/* LOOM_OK, or LOOM_E_INVALID with every problem in the message, one a line: "file:line:column: what". Frees the reader. */
LOOM_API loom_status loom_reader_finish(loom_reader *reader);

/* The nearest of `names` (NULL-terminated) by edit distance, or NULL when none is near. */
LOOM_API const char *loom_nearest_name(const char *name, const char *const *names);

LOOM_END
#endif
