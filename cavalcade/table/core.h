/* The parts of the table that run millions of times a second. All state lies in arrays that Python owns: they are
   preallocated, may be shared between processes, are saved as they are, and `Table.check` reads them. */

#ifndef CAVALCADE_CORE_H
#define CAVALCADE_CORE_H

#include <stdint.h>

#define FAN 16       /* children of a tree node: 16 float leaves are one cache line */
#define LEVELS 9     /* 16^8 leaves are more than fit in memory */
#define PENDING 512  /* changed leaves whose parents wait to be summed again */

#define AHEAD 12     /* records that are fetched before they are needed */

#if defined(__GNUC__)
#define PREFETCH(p) __builtin_prefetch(p)
#else
#define PREFETCH(p) ((void)0)
#endif

typedef enum { UNIFORM, PRIORITISED, FIFO, LIFO, MIN_HEAP, MAX_HEAP } Kind;

/* Counters of a table, in one array so that they are saved and restored together. */
enum { LIVE, NEXT, HIGH, SPENT, RANDOM, SAMPLER_HEAD, SAMPLER_TAIL, REMOVER_HEAD, REMOVER_TAIL, COUNTERS };

/* Rows that items refer to. A row is free when nobody refers to it: no item of any table and no writer. */
typedef struct {
    int64_t rows;
    int64_t *ends;     /* [2] of the ring of free rows: taken at the first, given back at the second */
    int32_t *free;     /* [rows] */
    int32_t *refs;     /* [rows] */
    int32_t *previous; /* [rows] the older frame of a stack; row 0 is blank and ends every chain */
    int16_t *holder;   /* [rows] the writer that still needs the row, plus one */
    int64_t stack;     /* frames of an observation */
} Rows;

struct Table;

/* Chooses items: to be drawn, or to be removed. */
typedef struct {
    Kind kind;
    double exponent;
    float *leaf;           /* prioritised: [places, rounded up to FAN] priority ** exponent, and 0 for a priority of 0 */
    double *inner;         /* the sums above, one level after the other; doubles, so that no probability drifts */
    int levels;
    int64_t leaves, offset[LEVELS], size[LEVELS];
    int32_t *after, *before; /* first and last in: a list in order of insertion; heaps: places, and where each is */
    int64_t *touched;        /* heaps: [places] the number of each item's last change, its insert being the first */
    int64_t *head, *tail;    /* of the list; of a heap, `head` is its count and `tail` how many changes there were */
    int64_t pending;
    int32_t changed[PENDING];
} Selector;

/* What the core knows of an item. Its own small leaves follow in the same record, so that a draw costs one cache miss. */
typedef struct {
    int64_t key;     /* (number of the insert) << bits | place, or -1 where there is no item */
    int64_t version; /* of the policy that made it */
    double made;     /* when: seconds of the wall clock */
    float priority;  /* as given */
    int32_t times;   /* drawn so far */
    int32_t slots[]; /* [width] its rows */
} Item;

#define ITEM(t, place) ((Item *)((t)->records + (int64_t)(place) * (t)->stride))

typedef struct Table {
    int64_t capacity; /* items that may stay */
    int64_t places;   /* one more: a new item lies among the others while the remover chooses */
    int64_t width, max_times, stride;
    int bits;
    int64_t *counters; /* [COUNTERS] */
    double *peak;      /* [1] the highest priority so far: what an item gets that comes without one */
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
