/* Copies between records and columns, as functions for Python. */

#ifndef CAVALCADE_COLUMNS_H
#define CAVALCADE_COLUMNS_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "core.h"

PyObject *gather(PyObject *self, PyObject *args);
PyObject *scatter(PyObject *self, PyObject *args);
PyObject *chain(PyObject *self, PyObject *args);

#endif
