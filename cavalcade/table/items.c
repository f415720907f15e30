/* Items and the rows that they refer to: insert, draw, update and delete items, and free rows without references. */

#include "core.h"

/* A number in [0, 1) by SplitMix64 (Steele 2014). Its one word of state lies in the counters, so that a restored table
   draws what the saved one would have drawn. */
double random_unit(Table *t) {
    uint64_t z = (uint64_t)t->counters[RANDOM] + 0x9E3779B97F4A7C15u;
    t->counters[RANDOM] = (int64_t)z;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

/* --- rows ------------------------------------------------------------------------------------------------------------ */

/* Takes `count` free rows for a writer (`holder`: its number plus one); returns 0 and takes none if fewer are free. */
int64_t rows_take(Rows *r, int64_t count, int16_t holder, int32_t *slots) {
    if (r->ends[1] - r->ends[0] < count) return 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t slot = r->free[r->ends[0]++ % r->rows];
        r->refs[slot] = 1;
        r->holder[slot] = holder;
        r->previous[slot] = 0;
        slots[i] = slot;
    }
    return count;
}

static void unrefer(Rows *r, int32_t slot) {
    if (--r->refs[slot] == 0) r->free[r->ends[1]++ % r->rows] = slot;
}

/* Adds a reference (by = 1) or removes one (by = -1) to a row and to the older frames of its stack. */
void rows_refer(Rows *r, int32_t slot, int32_t by) {
    for (int64_t depth = 0; depth < r->stack && slot; depth++) {
        int32_t older = r->previous[slot];
        if (by > 0) r->refs[slot]++;
        else unrefer(r, slot);
        slot = older;
    }
}

/* The writer of a row needs it no more. */
void rows_release(Rows *r, int32_t slot) {
    if (!slot || !r->holder[slot]) return;
    r->holder[slot] = 0;
    unrefer(r, slot);
}

/* --- items ----------------------------------------------------------------------------------------------------------- */

/* Removes an item. The caller calls `selector_settle` afterwards, once for many items. */
void table_delete(Table *t, int64_t place) {
    Item *item = ITEM(t, place);
    selector_drop(t, &t->sampler, place);
    selector_drop(t, &t->remover, place);
    for (int64_t j = 0; j < t->width; j++)
        if (item->slots[j]) rows_refer(t->rows, item->slots[j], -1);
    t->counters[SPENT] -= item->times;
    t->counters[LIVE]--;
    item->key = -1;
    t->free[t->places - t->counters[LIVE] - 1] = (int32_t)place;
}

/* Inserts items one after the other. Whenever there is one too many the remover chooses which is removed; that may be
   the new one. Fills `places` [count] and returns how many items were removed. */
int64_t table_insert(Table *t, int64_t count, const int32_t *slots, const float *priority, int64_t version,
                     double made, int32_t *places) {
    int64_t removed = 0;
    double ignored;
    for (int64_t i = 0; i < count; i++, slots += t->width) {
        int64_t place = t->free[t->places - t->counters[LIVE] - 1];
        Item *item = ITEM(t, place);
        t->counters[LIVE]++;
        if (place >= t->counters[HIGH]) t->counters[HIGH] = place + 1;
        item->key = t->counters[NEXT]++ << t->bits | place;
        item->version = version;
        item->made = made;
        item->priority = priority ? priority[i] : (float)*t->peak;
        item->times = 0;
        for (int64_t j = 0; j < t->width; j++) {
            item->slots[j] = slots[j];
            if (slots[j]) rows_refer(t->rows, slots[j], 1);
        }
        if (item->priority > *t->peak) *t->peak = item->priority;
        places[i] = (int32_t)place;
        selector_add(t, &t->sampler, place);
        selector_add(t, &t->remover, place);
        if (t->counters[LIVE] > t->capacity) {
            table_delete(t, selector_choose(t, &t->remover, &ignored));
            removed++;
        }
    }
    selector_settle(&t->sampler);
    selector_settle(&t->remover);
    return removed;
}

/* Draws `count` items and fills [count] of all that is known of them, and `slots` [count, width]. Items that were drawn
   `max_times` are deleted; the contents of their rows stay until the next rows are taken, and the caller copies them
   before. */
void table_draw(Table *t, int64_t count, int32_t *places, int64_t *keys, int64_t *version, double *made,
                double *probability, int32_t *times, int32_t *slots) {
    int at_random = t->sampler.kind == UNIFORM || t->sampler.kind == PRIORITISED;
    int at_once = at_random && !t->max_times; /* because nothing changes between one item and the next */
    if (at_once) selector_choose_many(t, &t->sampler, count, places, probability);
    for (int64_t i = 0; i < count; i++) {
        if (!at_once) places[i] = (int32_t)selector_choose(t, &t->sampler, probability + i);
        Item *item = ITEM(t, places[i]);
        keys[i] = item->key;
        version[i] = item->version;
        made[i] = item->made;
        times[i] = ++item->times;
        t->counters[SPENT]++;
        for (int64_t j = 0; j < t->width; j++) slots[i * t->width + j] = item->slots[j];
        if (t->max_times && item->times >= t->max_times) table_delete(t, places[i]);
    }
    selector_settle(&t->sampler);
    selector_settle(&t->remover);
}

/* Sets the priorities of the items with these keys that are still there; returns how many these are. */
int64_t table_update(Table *t, int64_t count, const int64_t *keys, const float *priority) {
    int64_t found = 0, mask = ((int64_t)1 << t->bits) - 1;
    for (int64_t i = 0; i < count; i++) {
        int64_t place = keys[i] & mask;
        if (keys[i] < 0 || place >= t->places || ITEM(t, place)->key != keys[i]) continue; /* removed */
        ITEM(t, place)->priority = priority[i];
        if (priority[i] > *t->peak) *t->peak = priority[i];
        selector_change(t, &t->sampler, place);
        selector_change(t, &t->remover, place);
        found++;
    }
    selector_settle(&t->sampler);
    selector_settle(&t->remover);
    return found;
}
