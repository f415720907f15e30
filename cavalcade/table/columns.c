/* Copies between records (all leaves of an item or a row side by side) and columns (one leaf of many). */

#include "columns.h"

#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#define FENCE() _mm_sfence() /* streamed writes arrive before the word that tells another process of them */
#else
#define FENCE() ((void)0)
#endif

#define MOST_FIELDS 256
#define LARGE_COPY (1 << 18) /* bytes of a copy from which other Python threads may run meanwhile */
#define PAGE 4096            /* bytes of a leaf from which it is written past the cache: it is read much later */
#define STREAMED (4 << 20)   /* bytes of a column from which it is written past the cache, which it would overflow */

/* Constant sizes become single instructions; memcpy of an unknown size is a call. */
static inline void copy(char *to, const char *from, int64_t size) {
    switch (size) {
    case 1: *to = *from; break;
    case 4: memcpy(to, from, 4); break;
    case 8: memcpy(to, from, 8); break;
    case 16: memcpy(to, from, 16); break;
    default: memcpy(to, from, (size_t)size);
    }
}

/* Write past the cache, which saves the processor reading the memory that it is about to overwrite. */
static inline void copy_streamed(char *to, const char *from, int64_t size) {
#if defined(__SSE2__)
    if (((uintptr_t)to | (uintptr_t)size) % 16 == 0) {
        for (int64_t i = 0; i < size; i += 16)
            _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
        return;
    }
#endif
    memcpy(to, from, (size_t)size);
}

typedef struct {
    Py_buffer base, index;
    Py_ssize_t stride, start, step, count;
    int fields;
    /* of each leaf, in bytes: where it lies in a record, its size, and the distance of two entries of its column */
    Py_ssize_t offset[MOST_FIELDS], size[MOST_FIELDS], row[MOST_FIELDS];
    Py_buffer column[MOST_FIELDS];
} Copy;

static void copy_close(Copy *c) {
    PyBuffer_Release(&c->base);
    PyBuffer_Release(&c->index);
    for (int f = 0; f < c->fields; f++) PyBuffer_Release(&c->column[f]);
}

/* Whether each entry of a column is contiguous; `row` becomes the bytes from one entry to the next. */
static int rows_are_whole(const Py_buffer *view, Py_ssize_t *row) {
    if (view->ndim < 1 || !view->strides) return 1;
    Py_ssize_t inner = view->itemsize;
    for (int d = view->ndim - 1; d > 0; d--) {
        if (view->shape[d] != 1 && view->strides[d] != inner) return 0;
        inner *= view->shape[d];
    }
    *row = view->strides[0];
    return 1;
}

/* Reads and checks (base, stride, index, start, step, layout, [columns]): entry i of every column belongs to the record
   `index[start + i * step]`; `layout` [columns, 2] int64 is the offset and size of each leaf in bytes. */
static int copy_open(Copy *c, PyObject *args, int writes_columns) {
    PyObject *columns;
    Py_buffer layout;
    if (!PyArg_ParseTuple(args, "y*ny*nny*O", &c->base, &c->stride, &c->index, &c->start, &c->step, &layout, &columns))
        return 0;
    int flags = writes_columns ? PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE : PyBUF_STRIDED_RO;
    int64_t length = c->index.len / 4, records = c->stride ? c->base.len / c->stride : 0;
    Py_ssize_t wanted = layout.len / 16;
    c->fields = 0;
    c->count = length > c->start ? (length - c->start + c->step - 1) / c->step : 0;
    if (wanted > MOST_FIELDS || wanted != PyList_Size(columns)) goto wrong;
    for (Py_ssize_t f = 0; f < wanted; f++) {
        c->offset[f] = ((const int64_t *)layout.buf)[2 * f];
        c->size[f] = ((const int64_t *)layout.buf)[2 * f + 1];
        if (PyObject_GetBuffer(PyList_GetItem(columns, f), &c->column[f], flags) < 0) goto failed;
        c->fields++;
        if (c->column[f].len != c->count * c->size[f] || c->offset[f] + c->size[f] > c->stride) goto wrong;
        c->row[f] = c->size[f];
        if (!writes_columns && !rows_are_whole(&c->column[f], &c->row[f])) goto wrong;
    }
    const int32_t *index = c->index.buf;
    for (int64_t i = 0; i < c->count; i++) {
        int32_t at = index[c->start + i * c->step];
        if (at < 0 || at >= records) goto wrong;
    }
    PyBuffer_Release(&layout);
    return 1;
wrong:
    PyErr_SetString(PyExc_ValueError, "the columns, the layout and the index do not belong together");
failed:
    PyBuffer_Release(&layout);
    copy_close(c);
    return 0;
}

/* From records to columns. */
static void gather_records(const Copy *c) {
    const int32_t *index = (const int32_t *)c->index.buf + c->start;
    const char *base = c->base.buf;
    if (c->fields == 1 && c->count * c->size[0] >= STREAMED) {
        for (int64_t i = 0; i < c->count; i++)
            copy_streamed((char *)c->column[0].buf + i * c->size[0],
                          base + (int64_t)index[i * c->step] * c->stride + c->offset[0], c->size[0]);
        FENCE();
        return;
    }
    for (int64_t i = 0; i < c->count; i++) {
        if (i + AHEAD < c->count) PREFETCH(base + (int64_t)index[(i + AHEAD) * c->step] * c->stride);
        const char *record = base + (int64_t)index[i * c->step] * c->stride;
        for (int f = 0; f < c->fields; f++)
            copy((char *)c->column[f].buf + i * c->size[f], record + c->offset[f], c->size[f]);
    }
}

PyObject *gather(PyObject *self, PyObject *args) {
    Copy c;
    if (!copy_open(&c, args, 1)) return NULL;
    if (c.count * c.stride >= LARGE_COPY) {
        Py_BEGIN_ALLOW_THREADS gather_records(&c);
        Py_END_ALLOW_THREADS
    } else
        gather_records(&c);
    copy_close(&c);
    Py_RETURN_NONE;
}

/* From columns to records. */
PyObject *scatter(PyObject *self, PyObject *args) {
    Copy c;
    if (!copy_open(&c, args, 0)) return NULL;
    const int32_t *index = (const int32_t *)c.index.buf + c.start;
    for (int64_t i = 0; i < c.count; i++) {
        char *record = (char *)c.base.buf + (int64_t)index[i * c.step] * c.stride;
        for (int f = 0; f < c.fields; f++) {
            const char *from = (const char *)c.column[f].buf + i * c.row[f];
            if (c.size[f] >= PAGE) copy_streamed(record + c.offset[f], from, c.size[f]);
            else copy(record + c.offset[f], from, c.size[f]);
        }
    }
    FENCE();
    copy_close(&c);
    Py_RETURN_NONE;
}

/* `out` [count, depth] int32: the slots of the frames of each stack, oldest first. `index` has the slot of the newest
   frame, `previous` [rows] the slot of the frame before each row. */
PyObject *chain(PyObject *self, PyObject *args) {
    Py_buffer previous, index, out;
    Py_ssize_t start, step, depth;
    if (!PyArg_ParseTuple(args, "y*y*nnnw*", &previous, &index, &start, &step, &depth, &out)) return NULL;
    int64_t count = depth ? out.len / 4 / depth : 0, length = index.len / 4, rows = previous.len / 4;
    int fits = depth > 0 && (count == 0 || start + (count - 1) * step < length);
    for (int64_t i = 0; fits && i < count; i++) {
        int32_t slot = ((const int32_t *)index.buf)[start + i * step];
        for (int64_t j = depth - 1; j >= 0; j--) {
            if (slot < 0 || slot >= rows) slot = 0;
            ((int32_t *)out.buf)[i * depth + j] = slot;
            slot = ((const int32_t *)previous.buf)[slot];
        }
    }
    PyBuffer_Release(&previous), PyBuffer_Release(&index), PyBuffer_Release(&out);
    if (!fits) return PyErr_Format(PyExc_ValueError, "the chain's arrays do not belong together");
    Py_RETURN_NONE;
}
