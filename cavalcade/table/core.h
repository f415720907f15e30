/* The parts of the table that run millions of times a second. All state lies in preallocated arrays that Python owns:
   they may be shared between processes, a checkpoint saves them as they are, and `Table.check` reads them.

   A *slot* is the number of a row, a *place* the number of an item's record. */

#ifndef CAVALCADE_CORE_H
#define CAVALCADE_CORE_H

#include <stdint.h>

#define FAN 16       /* children of a tree node: 16 float leaves are one cache line */
#define LEVELS 9     /* 16^8 leaves are more than fit in memory */
#define PENDING 512  /* changed leaves whose parents wait to be summed again */

#define AHEAD 12     /* a record is fetched into the cache this many records before it is needed */

#if defined(__GNUC__)
#define PREFETCH(p) __builtin_prefetch(p)
#else
#define PREFETCH(p) ((void)0)
#endif

typedef enum { UNIFORM, PRIORITISED, FIFO, LIFO, MIN_HEAP, MAX_HEAP } Kind;

/* Counters of a table, in one array so that they are saved and restored together: items that are there, number of the
   next insert, one more than the highest place ever used, draws of the items that are there, state of the random
   numbers, and head and tail of the two selectors. */
enum { LIVE, NEXT, HIGH, SPENT, RANDOM, SAMPLER_HEAD, SAMPLER_TAIL, REMOVER_HEAD, REMOVER_TAIL, COUNTERS };

/* Rows that items refer to. A row is free when no item of any table and no writer refers to it. */
typedef struct {
    int64_t rows;
    int64_t *ends;     /* [2] of the ring of free rows: rows are taken at the first and given back at the second */
    int32_t *free;     /* [rows] slots of free rows, as a ring */
    int32_t *refs;     /* [rows] references by items, and one by the writer that holds the row */
    int32_t *previous; /* [rows] the slot of the frame before; row 0 is blank and ends every chain */
    int16_t *holder;   /* [rows] the number of the writer that still needs the row, plus one; 0: none */
    int64_t stack;     /* frames of an observation */
} Rows;

struct Table;

/* Chooses which item is drawn or removed. */
typedef struct {
    Kind kind;
    double exponent;
    float *leaf;   /* prioritised: [places, rounded up to FAN] the share priority ** exponent, 0 for a priority of 0 */
    double *inner; /* prioritised: the sums above the leaves, level after level, the lowest first */
    int levels;    /* of `inner` */
    int64_t leaves, offset[LEVELS], size[LEVELS]; /* number of leaves; of each level of `inner`: begin and length */
    int32_t *after, *before; /* fifo, lifo: [places] a list in order of insertion; heaps: the heap, and where in it
                                each place is */
    int64_t *touched;        /* heaps: [places] the number of the item's last change; its insert is its first change */
    int64_t *head, *tail;    /* fifo, lifo: the ends of the list, or -1; heaps: the number of items and of changes */
    int64_t pending;         /* prioritised: leaves in `changed` */
    int32_t changed[PENDING]; /* prioritised: places of leaves whose parents are not summed yet */
} Selector;

/* What the core knows of an item. The item's own small leaves follow in the same record, so that drawing it costs one
   cache miss. */
typedef struct {
    int64_t key;     /* (number of the insert) << bits | place, or -1 where there is no item */
    int64_t version; /* of the params that acted */
    double made;     /* when the item was made: seconds of the wall clock */
    float priority;  /* as given, without the exponent */
    int32_t times;   /* how often it was drawn */
    int32_t slots[]; /* [width] its rows; 0 where it has fewer */
} Item;

#define ITEM(t, place) ((Item *)((t)->records + (int64_t)(place) * (t)->stride))

typedef struct Table {
    int64_t capacity; /* items that may stay */
    int64_t places;   /* one more: a new item lies in it while the remover chooses among all */
    int64_t width, max_times, stride; /* rows of an item; draws after which it is removed, or 0; bytes of a record */
    int bits;          /* of a key that hold the place */
    int64_t *counters; /* [COUNTERS] */
    double *peak;      /* [1] the highest priority so far, which an item gets that is inserted without one */
    int32_t *free;     /* [places] a stack of free places */
    char *records;     /* [places, stride] */
    Rows *rows;
    Selector sampler, remover;
} Table;

void selector_layout(Selector *s, int64_t places);
void selector_add(Table *t, Selector *s, int64_t place);
void selector_drop(Table *t, Selector *s, int64_t place);
void selector_change(Table *t, Selector *s, int64_t place);
void selector_settle(Selector *s);
int64_t selector_choose(Table *t, Selector *s, double *probability);
void selector_choose_many(Table *t, Selector *s, int64_t count, int32_t *places, double *probability);
double selector_total(const Selector *s);

int64_t rows_take(Rows *r, int64_t count, int16_t holder, int32_t *slots);
void rows_refer(Rows *r, int32_t slot, int32_t by);
void rows_release(Rows *r, int32_t slot);

double random_unit(Table *t);
int64_t table_insert(Table *t, int64_t count, const int32_t *slots, const float *priority, int64_t version,
                     double made, int32_t *places);
void table_delete(Table *t, int64_t place);
void table_draw(Table *t, int64_t count, int32_t *places, int64_t *keys, int64_t *version, double *made,
                double *probability, int32_t *times, int32_t *slots);
int64_t table_update(Table *t, int64_t count, const int64_t *keys, const float *priority);

#endif
