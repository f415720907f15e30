/* Words (int64) in shared memory that processes watch: Python's access to what bell.h does. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "bell.h"

/* The address of the word at index `at`, or NULL with an IndexError. */
static int64_t *word(Py_buffer *view, Py_ssize_t at) {
    if (view->itemsize == 8 && at >= 0 && at < view->len / 8) return (int64_t *)view->buf + at;
    PyErr_SetString(PyExc_IndexError, "no such word");
    return NULL;
}

static PyObject *load(PyObject *self, PyObject *args) {
    Py_buffer view;
    Py_ssize_t at;
    if (!PyArg_ParseTuple(args, "y*n", &view, &at)) return NULL;
    READS_ARE_DONE();
    int64_t *where = word(&view, at), value = where ? LOAD(where) : 0;
    PyBuffer_Release(&view);
    return where ? PyLong_FromLongLong(value) : NULL;
}

static PyObject *store(PyObject *self, PyObject *args) {
    Py_buffer view;
    Py_ssize_t at;
    long long value;
    if (!PyArg_ParseTuple(args, "w*nL", &view, &at, &value)) return NULL;
    int64_t *where = word(&view, at);
    if (where) STORE(where, (int64_t)value);
    WRITES_MAY_BEGIN();
    PyBuffer_Release(&view);
    if (!where) return NULL;
    Py_RETURN_NONE;
}

/* A bell is two words: how often it was rung, and 1 while a process rests by it. Ringing costs a system call only while
   a process rests. */

static PyObject *ring(PyObject *self, PyObject *args) {
    Py_buffer view;
    Py_ssize_t at;
    if (!PyArg_ParseTuple(args, "w*n", &view, &at)) return NULL;
    int64_t *bell = word(&view, at), *asleep = word(&view, at + 1);
    if (bell && asleep) {
        ADD(bell, 1);
        if (LOAD_AFTER(asleep)) WAKE(bell);
    }
    PyBuffer_Release(&view);
    if (!bell || !asleep) return NULL;
    Py_RETURN_NONE;
}

static PyObject *rest(PyObject *self, PyObject *args) {
    Py_buffer view;
    Py_ssize_t at;
    long long seen;
    double seconds;
    if (!PyArg_ParseTuple(args, "w*nLd", &view, &at, &seen, &seconds)) return NULL;
    int64_t *bell = word(&view, at), *asleep = word(&view, at + 1);
    if (bell && asleep) {
        STORE_BEFORE(asleep, 1);
        Py_BEGIN_ALLOW_THREADS;
        if (LOAD_AFTER(bell) == seen) sleep_until_rung(bell, (int32_t)seen, seconds);
        Py_END_ALLOW_THREADS;
        STORE(asleep, 0);
    }
    PyBuffer_Release(&view);
    if (!bell || !asleep) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"load", load, METH_VARARGS, "(words, at) -> a word another process may have written, and all it wrote before"},
    {"store", store, METH_VARARGS, "(words, at, value): for other processes, after all that was written before"},
    {"ring", ring, METH_VARARGS, "(words, at): wake whoever rests by this bell"},
    {"rest", rest, METH_VARARGS, "(words, at, seen, seconds): until it was rung more often than seen, or time is up"},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_words", "Words that processes watch.", -1, methods};

PyMODINIT_FUNC PyInit__words(void) { return PyModule_Create(&module); }
