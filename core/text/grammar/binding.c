/* The HLO grammar as a capsule for the Python package tree_sitter: tree_sitter.Language(language()). */

#include <Python.h>

typedef struct TSLanguage TSLanguage;

const TSLanguage *tree_sitter_hlo(void);

static PyObject *language(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyCapsule_New((void *)tree_sitter_hlo(), "tree_sitter.Language", NULL);
}

static PyMethodDef methods[] = {
    {"language", language, METH_NOARGS, "The grammar of HLO text, a capsule named tree_sitter.Language."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_hlo_grammar",
    .m_doc = "The tree-sitter grammar of HLO text.",
    .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__hlo_grammar(void) {
    return PyModuleDef_Init(&definition);
}
