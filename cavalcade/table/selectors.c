/* Six ways to choose an item. Adding, dropping, changing and choosing take logarithmic time or less. */

#include "core.h"

#include <math.h>

#define SMALLEST 1e-8 /* a lower priority counts as this under a negative exponent, where 0 would be infinite */
#define LARGEST 1e30f /* a larger leaf counts as this, so that no sum overflows */

/* --- prioritised: a tree of sums; a changed parent is summed anew, so that rounding errors never add up ----------- */

/* Computes the number of leaves, and where each level of sums lies in `inner`. */
void selector_layout(Selector *s, int64_t places) {
    int64_t size = (places + FAN - 1) / FAN * FAN, offset = 0;
    s->levels = 0;
    s->leaves = size;
    while (size > FAN) {
        size = (size / FAN + FAN - 1) / FAN * FAN;
        s->offset[s->levels] = offset;
        s->size[s->levels++] = size;
        offset += size;
    }
}

/* The share of an item with this priority. */
static float leaf_of(const Selector *s, float priority) {
    if (priority == 0 && s->exponent >= 0) return 0; /* because powf(0, 0) is 1 */
    double base = s->exponent < 0 && priority < SMALLEST ? SMALLEST : priority;
    float value = s->exponent == 1.0 ? (float)base : powf((float)base, (float)s->exponent);
    return value < LARGEST ? value : LARGEST;
}

#define SUM(name, type)                                                                               \
    static double name(const type *c) {                                                               \
        double a[4] = {0, 0, 0, 0};                                                                   \
        for (int j = 0; j < FAN; j += 4) a[0] += c[j], a[1] += c[j + 1], a[2] += c[j + 2], a[3] += c[j + 3]; \
        return a[0] + a[1] + (a[2] + a[3]);                                                           \
    }
SUM(sum_leaves, float)
SUM(sum_inner, double)

/* Sums the parents of changed leaves anew, level by level. A parent of neighbours is summed once; a level that has no
   more nodes than there are changes below it is summed as a whole. */
void selector_settle(Selector *s) {
    int64_t count = s->pending;
    s->pending = 0;
    for (int level = 0; level < s->levels && count; level++) {
        double *here = s->inner + s->offset[level];
        int64_t kept = 0, nodes = (level ? s->size[level - 1] : s->leaves) / FAN;
        int32_t last = -1;
        int all = nodes <= count;
        for (int64_t i = 0; i < (all ? nodes : count); i++) {
            int32_t parent = all ? (int32_t)i : s->changed[i] / FAN;
            if (parent == last) continue;
            here[parent] = level ? sum_inner(s->inner + s->offset[level - 1] + (int64_t)parent * FAN)
                                 : sum_leaves(s->leaf + (int64_t)parent * FAN);
            s->changed[kept++] = last = parent;
        }
        count = kept;
    }
}

static void set_leaf(Selector *s, int64_t place, float value) {
    s->leaf[place] = value;
    s->changed[s->pending++] = (int32_t)place;
    if (s->pending == PENDING) selector_settle(s);
}

double selector_total(const Selector *s) {
    return s->levels ? sum_inner(s->inner + s->offset[s->levels - 1]) : sum_leaves(s->leaf);
}

/* Returns the child of a node in whose interval of the running sum `u` falls; `u` becomes its distance from the
   interval's beginning. Finds first one of four groups of four children, then one child of the group, by counting
   instead of branching, because branches on random numbers are mispredicted. A rounding error can lead to a child with
   a share of 0: then the last child before it with a share is taken. */
#define DESCEND(type)                                                                                           \
    static inline int descend_##type(const type *node, double *u) {                                             \
        double a = (double)node[0] + node[1] + ((double)node[2] + node[3]);                                     \
        double b = (double)node[4] + node[5] + ((double)node[6] + node[7]);                                     \
        double c = (double)node[8] + node[9] + ((double)node[10] + node[11]);                                   \
        const double groups[4] = {0, a, a + b, a + b + c};                                                      \
        int group = (*u >= groups[1]) + (*u >= groups[2]) + (*u >= groups[3]);                                  \
        double left = *u - groups[group];                                                                       \
        const type *four = node + 4 * group;                                                                    \
        const double members[4] = {0, four[0], (double)four[0] + four[1], (double)four[0] + four[1] + four[2]}; \
        int member = (left >= members[1]) + (left >= members[2]) + (left >= members[3]);                        \
        int child = 4 * group + member;                                                                         \
        *u = left - members[member];                                                                            \
        if (node[child] == 0) {                                                                                 \
            while (child > 0 && node[child] == 0) child--;                                                      \
            *u = (double)node[child] * 0.5;                                                                     \
        }                                                                                                       \
        return child;                                                                                           \
    }
DESCEND(double)
DESCEND(float)

/* --- uniform; also prioritised, when all shares are zero ---------------------------------------------------------- */

static int64_t random_below(Table *t, int64_t bound) { return (int64_t)(random_unit(t) * (double)bound); }

static int64_t uniform_place(Table *t) {
    int64_t live = t->counters[LIVE], high = t->counters[HIGH];
    if (live * 64 >= high) { /* choose any place, again and again until it has an item */
        for (;;) {
            int64_t place = random_below(t, high);
            if (ITEM(t, place)->key >= 0) return place;
        }
    }
    int64_t rank = random_below(t, live), place = 0;
    while (ITEM(t, place)->key < 0 || rank-- > 0) place++;
    return place;
}

/* --- heaps: the lowest (highest) priority; among equals the item that was inserted or changed longest ago --------- */

static int comes_first(const Table *t, const Selector *s, int32_t a, int32_t b) {
    float p = ITEM(t, a)->priority, q = ITEM(t, b)->priority;
    if (p != q) return s->kind == MIN_HEAP ? p < q : p > q;
    return s->touched[a] < s->touched[b];
}

static void heap_put(Selector *s, int64_t at, int32_t place) {
    s->after[at] = place;
    s->before[place] = (int32_t)at;
}

static void heap_sift(Table *t, Selector *s, int64_t at) {
    int32_t place = s->after[at];
    int64_t count = *s->head;
    while (at > 0 && comes_first(t, s, place, s->after[(at - 1) / 2])) {
        heap_put(s, at, s->after[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= count) break;
        if (child + 1 < count && comes_first(t, s, s->after[child + 1], s->after[child])) child++;
        if (!comes_first(t, s, s->after[child], place)) break;
        heap_put(s, at, s->after[child]);
        at = child;
    }
    heap_put(s, at, place);
}

/* --- the four operations ------------------------------------------------------------------------------------------ */

void selector_add(Table *t, Selector *s, int64_t place) {
    switch (s->kind) {
    case UNIFORM: break;
    case PRIORITISED: set_leaf(s, place, leaf_of(s, ITEM(t, place)->priority)); break;
    case FIFO:
    case LIFO:
        s->after[place] = -1;
        s->before[place] = (int32_t)*s->tail;
        if (*s->tail >= 0) s->after[*s->tail] = (int32_t)place;
        else *s->head = place;
        *s->tail = place;
        break;
    default:
        s->touched[place] = (*s->tail)++;
        heap_put(s, *s->head, (int32_t)place);
        heap_sift(t, s, (*s->head)++);
    }
}

void selector_drop(Table *t, Selector *s, int64_t place) {
    switch (s->kind) {
    case UNIFORM: break;
    case PRIORITISED: set_leaf(s, place, 0); break;
    case FIFO:
    case LIFO: {
        int32_t before = s->before[place], after = s->after[place];
        if (before >= 0) s->after[before] = after;
        else *s->head = after;
        if (after >= 0) s->before[after] = before;
        else *s->tail = before;
        break;
    }
    default: {
        int64_t at = s->before[place], last = --*s->head;
        if (at == last) break;
        heap_put(s, at, s->after[last]);
        heap_sift(t, s, at);
    }
    }
}

void selector_change(Table *t, Selector *s, int64_t place) {
    if (s->kind == PRIORITISED) set_leaf(s, place, leaf_of(s, ITEM(t, place)->priority));
    if (s->kind == MIN_HEAP || s->kind == MAX_HEAP) {
        s->touched[place] = (*s->tail)++;
        heap_sift(t, s, s->before[place]);
    }
}

int64_t selector_choose(Table *t, Selector *s, double *probability) {
    int32_t place;
    switch (s->kind) {
    case UNIFORM:
    case PRIORITISED: selector_choose_many(t, s, 1, &place, probability); return place;
    case FIFO: *probability = 1; return *s->head;
    case LIFO: *probability = 1; return *s->tail;
    default: *probability = 1; return s->after[0];
    }
}

/* `count` independent choices: `places` [count], and the probability [count] of each. All choices descend one level of
   the tree before any descends the next, so that the processor waits for many cache lines at once. On the way
   `probability` holds what is left of each random number. */
void selector_choose_many(Table *t, Selector *s, int64_t count, int32_t *places, double *probability) {
    if (s->kind == PRIORITISED) selector_settle(s);
    double total = s->kind == PRIORITISED ? selector_total(s) : 0;
    if (total <= 0) {
        for (int64_t i = 0; i < count; i++) {
            places[i] = (int32_t)uniform_place(t);
            probability[i] = 1.0 / (double)t->counters[LIVE];
        }
        return;
    }
    for (int64_t i = 0; i < count; i++) places[i] = 0, probability[i] = random_unit(t) * total;
    for (int level = s->levels - 1; level >= 0; level--) {
        const double *here = s->inner + s->offset[level], *below = s->inner + (level ? s->offset[level - 1] : 0);
        for (int64_t i = 0; i < count; i++) {
            int64_t node = (int64_t)places[i] * FAN;
            node += descend_double(here + node, probability + i);
            places[i] = (int32_t)node;
            if (level) PREFETCH(below + node * FAN), PREFETCH(below + node * FAN + FAN / 2);
            else PREFETCH(s->leaf + node * FAN);
        }
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t node = (int64_t)places[i] * FAN;
        node += descend_float(s->leaf + node, probability + i);
        places[i] = (int32_t)node;
        probability[i] = s->leaf[node] / total;
        PREFETCH(ITEM(t, node));
    }
}
