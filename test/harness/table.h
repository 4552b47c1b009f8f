/* A key-value table in memory that forked ranks share: what the store is in a real run. */
#ifndef LOOM_TEST_TABLE_H
#define LOOM_TEST_TABLE_H

#include "comm/bootstrap.h"

typedef struct table table;

table *table_open(void); /* before the fork */
void table_close(table *t);
loom_bootstrap table_bootstrap(table *t, int rank, int size);

#endif
