/* The functions of the core for Python: they check arguments and keep the arrays alive. */

#include "columns.h"

#include <math.h>
#include <stdlib.h>

#define MOST_ARRAYS 16


/* An open table, or open rows, with the arrays that it keeps alive. */
typedef struct {
    Py_buffer arrays[MOST_ARRAYS];
    int count;
    PyObject *other; /* of a table: the capsule of its rows */
    Rows rows;
    Table table;
} Opened;

/* The memory of an array of at least `least` entries of `item` bytes, which is kept alive; NULL with a ValueError. */
static void *hold(Opened *o, PyObject *array, Py_ssize_t item, Py_ssize_t least) {
    Py_buffer *view = &o->arrays[o->count];
    if (!array) PyErr_SetString(PyExc_ValueError, "the core needs more arrays");
    if (!array || PyObject_GetBuffer(array, view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) < 0) return NULL;
    o->count++;
    if (view->itemsize != item || view->len < item * least) {
        PyErr_Format(PyExc_ValueError, "array %d of the core has the wrong type or length", o->count - 1);
        return NULL;
    }
    return view->buf;
}

static void close_opened(PyObject *capsule) {
    Opened *o = PyCapsule_GetPointer(capsule, "cavalcade.core");
    if (!o) return;
    for (int i = 0; i < o->count; i++) PyBuffer_Release(&o->arrays[i]);
    Py_XDECREF(o->other);
    free(o);
}

static Opened *opened(PyObject *capsule) { return PyCapsule_GetPointer(capsule, "cavalcade.core"); }

static PyObject *open_rows(PyObject *self, PyObject *args) {
    PyObject *ends, *free_, *refs, *previous, *holder;
    Py_ssize_t rows, stack;
    if (!PyArg_ParseTuple(args, "nnOOOOO", &rows, &stack, &ends, &free_, &refs, &previous, &holder)) return NULL;
    Opened *o = calloc(1, sizeof *o);
    PyObject *capsule = PyCapsule_New(o, "cavalcade.core", close_opened);
    Rows *r = &o->rows;
    r->rows = rows, r->stack = stack;
    if (!(r->ends = hold(o, ends, 8, 2)) || !(r->free = hold(o, free_, 4, rows)) ||
        !(r->refs = hold(o, refs, 4, rows)) || !(r->previous = hold(o, previous, 4, rows)) ||
        !(r->holder = hold(o, holder, 2, rows))) {
        Py_DECREF(capsule);
        return NULL;
    }
    return capsule;
}

static int open_selector(Opened *o, Selector *s, PyObject *given, int64_t places, int64_t *head, int64_t *tail) {
    PyObject *a = NULL, *b = NULL, *c = NULL;
    int kind;
    if (!PyArg_ParseTuple(given, "id|OOO", &kind, &s->exponent, &a, &b, &c)) return 0;
    s->kind = kind, s->head = head, s->tail = tail;
    selector_layout(s, places);
    if (kind == UNIFORM) return 1;
    if (kind == PRIORITISED) {
        int64_t inner = s->levels ? s->offset[s->levels - 1] + s->size[s->levels - 1] : 0;
        return (s->leaf = hold(o, a, 4, s->leaves)) && (s->inner = hold(o, b, 8, inner));
    }
    if (!(s->after = hold(o, a, 4, places)) || !(s->before = hold(o, b, 4, places))) return 0;
    return kind == FIFO || kind == LIFO || (s->touched = hold(o, c, 8, places));
}

static PyObject *open_table(PyObject *self, PyObject *args) {
    PyObject *rows, *counters, *peak, *free_, *records, *sampler, *remover;
    Py_ssize_t capacity, width, stride, max_times;
    int bits;
    if (!PyArg_ParseTuple(args, "OnnnniOOOOOO", &rows, &capacity, &width, &stride, &max_times, &bits, &counters, &peak,
                          &free_, &records, &sampler, &remover))
        return NULL;
    Opened *store = opened(rows);
    if (!store) return NULL;
    Opened *o = calloc(1, sizeof *o);
    PyObject *capsule = PyCapsule_New(o, "cavalcade.core", close_opened);
    Py_INCREF(rows);
    o->other = rows;
    Table *t = &o->table;
    t->rows = &store->rows;
    t->capacity = capacity, t->places = capacity + 1;
    t->width = width, t->stride = stride, t->max_times = max_times, t->bits = bits;
    if (!(t->counters = hold(o, counters, 8, COUNTERS)) || !(t->peak = hold(o, peak, 8, 1)) ||
        !(t->free = hold(o, free_, 4, t->places)) || !(t->records = hold(o, records, 1, t->places * stride)) ||
        !open_selector(o, &t->sampler, sampler, t->places, t->counters + SAMPLER_HEAD, t->counters + SAMPLER_TAIL) ||
        !open_selector(o, &t->remover, remover, t->places, t->counters + REMOVER_HEAD, t->counters + REMOVER_TAIL)) {
        Py_DECREF(capsule);
        return NULL;
    }
    return capsule;
}

static PyObject *tree_size(PyObject *self, PyObject *args) {
    Py_ssize_t places;
    if (!PyArg_ParseTuple(args, "n", &places)) return NULL;
    Selector s;
    selector_layout(&s, places);
    Py_ssize_t inner = s.levels ? (Py_ssize_t)(s.offset[s.levels - 1] + s.size[s.levels - 1]) : 0;
    return Py_BuildValue("nn", (Py_ssize_t)s.leaves, inner);
}

/* --- rows -------------------------------------------------------------------------------------------------------- */

static PyObject *take(PyObject *self, PyObject *args) {
    PyObject *rows;
    int holder;
    Py_buffer slots;
    if (!PyArg_ParseTuple(args, "Oiw*", &rows, &holder, &slots)) return NULL;
    Opened *o = opened(rows);
    int64_t count = slots.len / 4;
    int taken = o && rows_take(&o->rows, count, (int16_t)holder, slots.buf) == count;
    PyBuffer_Release(&slots);
    return o ? PyBool_FromLong(taken) : NULL;
}

static PyObject *release(PyObject *self, PyObject *args) {
    PyObject *rows;
    Py_buffer slots;
    if (!PyArg_ParseTuple(args, "Oy*", &rows, &slots)) return NULL;
    Opened *o = opened(rows);
    for (int64_t i = 0; o && i < slots.len / 4; i++) rows_release(&o->rows, ((int32_t *)slots.buf)[i]);
    PyBuffer_Release(&slots);
    if (!o) return NULL;
    Py_RETURN_NONE;
}

/* --- items ------------------------------------------------------------------------------------------------------- */

/* Whether a priority is negative, infinite or no number; sets a ValueError that names the first. */
static int bad_priority(const float *priority, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!(priority[i] >= 0) || isinf(priority[i])) {
            PyObject *value = PyFloat_FromDouble(priority[i]);
            PyErr_Format(PyExc_ValueError, "priorities are finite and not negative, but number %d is %S", (int)i, value);
            Py_XDECREF(value);
            return 1;
        }
    return 0;
}

static PyObject *insert(PyObject *self, PyObject *args) {
    PyObject *table, *given;
    Py_buffer slots, places, priority = {0};
    long long version;
    double made;
    if (!PyArg_ParseTuple(args, "Oy*OLdw*", &table, &slots, &given, &version, &made, &places)) return NULL;
    Opened *o = opened(table);
    PyObject *answer = NULL;
    int64_t count = places.len / 4;
    if (!o || (given != Py_None && PyObject_GetBuffer(given, &priority, PyBUF_C_CONTIGUOUS) < 0)) goto end;
    if (slots.len / 4 != count * o->table.width || (priority.buf && priority.len / 4 != count)) {
        PyErr_SetString(PyExc_ValueError, "slots, priorities and places do not belong together");
        goto end;
    }
    for (int64_t i = 0; i < count * o->table.width; i++) {
        int32_t slot = ((const int32_t *)slots.buf)[i];
        if (slot < 0 || slot >= o->table.rows->rows || (slot && !o->table.rows->refs[slot])) {
            PyErr_Format(PyExc_ValueError, "row %d does not exist, or nobody holds it", (int)slot);
            goto end;
        }
    }
    if (priority.buf && bad_priority(priority.buf, count)) goto end;
    answer =
        PyLong_FromLongLong(table_insert(&o->table, count, slots.buf, priority.buf, version, made, places.buf));
end:
    if (priority.buf) PyBuffer_Release(&priority);
    PyBuffer_Release(&slots);
    PyBuffer_Release(&places);
    return answer;
}

static PyObject *remove_(PyObject *self, PyObject *args) {
    PyObject *table;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(args, "On", &table, &count)) return NULL;
    Opened *o = opened(table);
    if (!o) return NULL;
    Table *t = &o->table;
    double ignored;
    for (Py_ssize_t i = 0; i < count && t->counters[LIVE]; i++)
        table_delete(t, selector_choose(t, &t->remover, &ignored));
    selector_settle(&t->sampler);
    selector_settle(&t->remover);
    Py_RETURN_NONE;
}

static PyObject *delete_(PyObject *self, PyObject *args) {
    PyObject *table;
    Py_buffer keys;
    if (!PyArg_ParseTuple(args, "Oy*", &table, &keys)) return NULL;
    Opened *o = opened(table);
    int64_t found = 0;
    for (int64_t i = 0; o && i < keys.len / 8; i++) {
        int64_t key = ((int64_t *)keys.buf)[i], place = key & (((int64_t)1 << o->table.bits) - 1);
        if (key < 0 || place >= o->table.places || ITEM(&o->table, place)->key != key) continue;
        table_delete(&o->table, place);
        found++;
    }
    PyBuffer_Release(&keys);
    if (!o) return NULL;
    selector_settle(&o->table.sampler);
    selector_settle(&o->table.remover);
    return PyLong_FromLongLong(found);
}

/* Weights (N P)^-beta over their maximum (Schaul 2016), in float32. */
static void importance(int64_t count, const double *probability, double live, double beta, float *weight) {
    float highest = 0;
    for (int64_t i = 0; i < count; i++) {
        weight[i] = powf((float)(live * probability[i]), (float)-beta);
        highest = weight[i] > highest ? weight[i] : highest;
    }
    for (int64_t i = 0; i < count; i++) weight[i] /= highest;
}

static PyObject *draw(PyObject *self, PyObject *args) {
    PyObject *table;
    double beta;
    Py_buffer places, keys, version, made, probability, times, slots, weight;
    if (!PyArg_ParseTuple(args, "Odw*w*w*w*w*w*w*w*", &table, &beta, &places, &keys, &version, &made, &probability, &times,
                          &slots, &weight))
        return NULL;
    Opened *o = opened(table);
    int64_t count = places.len / 4;
    int fits = o && keys.len == count * 8 && version.len == count * 8 && made.len == count * 8 &&
               probability.len == count * 8 && times.len == count * 4 && slots.len == count * 4 * o->table.width &&
               weight.len == count * 4;
    if (fits) {
        double live = (double)o->table.counters[LIVE];
        table_draw(&o->table, count, places.buf, keys.buf, version.buf, made.buf, probability.buf, times.buf,
                   slots.buf);
        importance(count, probability.buf, live, beta, weight.buf);
    } else if (o)
        PyErr_SetString(PyExc_ValueError, "the arrays of a draw do not belong together");
    PyBuffer_Release(&places), PyBuffer_Release(&keys), PyBuffer_Release(&version), PyBuffer_Release(&probability);
    PyBuffer_Release(&times), PyBuffer_Release(&slots), PyBuffer_Release(&weight), PyBuffer_Release(&made);
    if (!fits) return NULL;
    Py_RETURN_NONE;
}

static PyObject *update(PyObject *self, PyObject *args) {
    PyObject *table, *answer = NULL;
    Py_buffer keys, priority;
    if (!PyArg_ParseTuple(args, "Oy*y*", &table, &keys, &priority)) return NULL;
    Opened *o = opened(table);
    int64_t count = keys.len / 8;
    if (o && priority.len / 4 != count) PyErr_SetString(PyExc_ValueError, "one priority for each key is needed");
    else if (o && !bad_priority(priority.buf, count))
        answer = PyLong_FromLongLong(table_update(&o->table, count, keys.buf, priority.buf));
    PyBuffer_Release(&keys);
    PyBuffer_Release(&priority);
    return answer;
}

static PyObject *total(PyObject *self, PyObject *table) {
    Opened *o = opened(table);
    if (!o) return NULL;
    const Table *t = &o->table;
    return PyFloat_FromDouble(t->sampler.kind == PRIORITISED ? selector_total(&t->sampler) : (double)t->counters[LIVE]);
}

static PyMethodDef methods[] = {
    {"open_rows", open_rows, METH_VARARGS, "(rows, stack, ends, free, refs, previous, holder) -> rows"},
    {"open_table", open_table, METH_VARARGS, "(rows, capacity, width, stride, max_times, bits, arrays...) -> table"},
    {"tree_size", tree_size, METH_VARARGS, "(places) -> leaves and inner nodes of a prioritised selector"},
    {"take", take, METH_VARARGS, "(rows, holder, slots) -> whether there were enough free rows"},
    {"release", release, METH_VARARGS, "(rows, slots): their writer needs them no more"},
    {"insert", insert, METH_VARARGS, "(table, slots, priority or None, version, made, places) -> how many were removed"},
    {"remove", remove_, METH_VARARGS, "(table, count): as the remover chooses"},
    {"delete", delete_, METH_VARARGS, "(table, keys) -> how many were there"},
    {"draw", draw, METH_VARARGS, "(table, beta, places, keys, version, made, probability, times, slots, weight)"},
    {"update", update, METH_VARARGS, "(table, keys, priority) -> how many were there"},
    {"total", total, METH_O, "(table) -> the sum of the sampler's shares"},
    {"gather", gather, METH_VARARGS, "(base, stride, index, start, step, layout, columns)"},
    {"scatter", scatter, METH_VARARGS, "(base, stride, index, start, step, layout, columns)"},
    {"chain", chain, METH_VARARGS, "(previous, index, start, step, depth, out)"},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_core", "Items, rows and selectors.", -1, methods};

PyMODINIT_FUNC PyInit__core(void) { return PyModule_Create(&module); }
