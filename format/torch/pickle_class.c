/* pickle_class.c - the allow-list: every class and function that a checkpoint may name, with its meaning. See
 * pickle.h. */
#include <string.h>
#include "format/torch/pickle.h"
#include "format/torch/torch_file.h"

#define STORAGE(name, dtype) \
    { \
        "torch", name "Storage", PK_STORAGE, dtype \
    }
#define DTYPE(name, dtype) \
    { \
        "torch", name, PK_DTYPE, dtype \
    }
#define BUILTIN(name, id) \
    { "builtins", name, id, 0 }, { "__builtin__", name, id, 0 }
#define PLAIN(module, name) \
    { \
        module, name, PK_INERT, 0 \
    }

static const struct pk_class classes[] = {
    { "torch._utils", "_rebuild_tensor_v2", PK_TENSOR_V2, 0 },
    { "torch._utils", "_rebuild_tensor_v3", PK_TENSOR_V3, 0 },
    { "torch._utils", "_rebuild_parameter", PK_PARAMETER, 0 },
    { "torch._utils", "_rebuild_parameter_with_state", PK_PARAMETER, 0 },
    { "torch._tensor", "_rebuild_from_type_v2", PK_FROM_TYPE, 0 },
    STORAGE("Float", TORCH_F32),
    STORAGE("Double", TORCH_F64),
    STORAGE("Half", TORCH_F16),
    STORAGE("BFloat16", TORCH_BF16),
    STORAGE("Long", TORCH_I64),
    STORAGE("Int", TORCH_I32),
    STORAGE("Short", TORCH_I16),
    STORAGE("Char", TORCH_I8),
    STORAGE("Byte", TORCH_U8),
    STORAGE("Bool", TORCH_BOOL),
    STORAGE("ComplexFloat", TORCH_C64),
    STORAGE("ComplexDouble", TORCH_C128),
    { "torch.storage", "UntypedStorage", PK_STORAGE, TORCH_BYTES },
    DTYPE("float32", TORCH_F32),
    DTYPE("float64", TORCH_F64),
    DTYPE("float16", TORCH_F16),
    DTYPE("bfloat16", TORCH_BF16),
    DTYPE("int64", TORCH_I64),
    DTYPE("int32", TORCH_I32),
    DTYPE("int16", TORCH_I16),
    DTYPE("int8", TORCH_I8),
    DTYPE("uint8", TORCH_U8),
    DTYPE("bool", TORCH_BOOL),
    DTYPE("complex64", TORCH_C64),
    DTYPE("complex128", TORCH_C128),
    DTYPE("uint16", TORCH_U16),
    DTYPE("uint32", TORCH_U32),
    DTYPE("uint64", TORCH_U64),
    DTYPE("float8_e4m3fn", TORCH_F8_E4M3),
    DTYPE("float8_e5m2", TORCH_F8_E5M2),
    DTYPE("float8_e4m3fnuz", TORCH_F8_E4M3FNUZ),
    DTYPE("float8_e5m2fnuz", TORCH_F8_E5M2FNUZ),
    DTYPE("float8_e8m0fnu", TORCH_F8_E8M0),
    { "torch", "Size", PK_MAKES_TUPLE, 0 },
    { "collections", "OrderedDict", PK_MAKES_DICT, 0 },
    { "collections", "defaultdict", PK_MAKES_DICT, 0 },
    { "collections", "Counter", PK_MAKES_DICT, 0 },
    { "collections", "deque", PK_MAKES_LIST, 0 },
    { "_codecs", "encode", PK_MAKES_BYTES, 0 },
    BUILTIN("set", PK_MAKES_SET),
    BUILTIN("frozenset", PK_MAKES_SET),
    BUILTIN("list", PK_MAKES_LIST),
    BUILTIN("dict", PK_MAKES_DICT),
    BUILTIN("bytearray", PK_INERT),
    BUILTIN("slice", PK_INERT),
    BUILTIN("complex", PK_INERT),
    BUILTIN("int", PK_INERT),
    BUILTIN("float", PK_INERT),
    BUILTIN("bool", PK_INERT),
    BUILTIN("str", PK_INERT),
    BUILTIN("bytes", PK_INERT),
    BUILTIN("tuple", PK_INERT),
    BUILTIN("range", PK_INERT),
    PLAIN("torch", "Tensor"),
    PLAIN("torch.nn.parameter", "Parameter"),
    PLAIN("torch", "device"),
    PLAIN("torch.serialization", "_get_layout"),
    PLAIN("torch", "strided"),
    PLAIN("torch", "contiguous_format"),
    PLAIN("torch", "preserve_format"),
    PLAIN("torch", "channels_last"),
    PLAIN("_io", "BytesIO"),
    PLAIN("argparse", "Namespace"),
    PLAIN("types", "SimpleNamespace"),
    PLAIN("datetime", "timedelta"),
    PLAIN("datetime", "datetime"),
    PLAIN("pathlib", "PosixPath"),
    PLAIN("pathlib", "PurePosixPath"),
    PLAIN("pathlib", "WindowsPath"),
    PLAIN("pathlib", "PureWindowsPath"),
    PLAIN("pathlib._local", "PosixPath"),
    PLAIN("pathlib._local", "PurePosixPath"),
    PLAIN("numpy", "dtype"),
    PLAIN("numpy", "ndarray"),
    PLAIN("numpy.core.multiarray", "_reconstruct"),
    PLAIN("numpy.core.multiarray", "scalar"),
    PLAIN("numpy._core.multiarray", "_reconstruct"),
    PLAIN("numpy._core.multiarray", "scalar"),
    PLAIN("numpy.core.numeric", "_frombuffer"),
    PLAIN("numpy._core.numeric", "_frombuffer"),
    PLAIN("deepspeed.utils.tensor_fragment", "fragment_address"),
};

/* Frameworks whose classes occur in options and enums. Functions are not allowed: the name of a class
 * starts with a capital. */
static const char *const class_modules[] = { "torch.distributed.", "torch.optim.",        "deepspeed.",
                                             "megatron.",          "transformer_engine.", "apex.",
                                             "transformers." };
static const struct pk_class some_class = { "", "", PK_INERT, 0 };

static int same(const char *text, const char *p, size_t n)
{
    return strlen(text) == n && !memcmp(text, p, n);
}

const struct pk_class *pk_class_find(const char *module, size_t n_module, const char *name, size_t n_name)
{
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (same(classes[i].name, name, n_name) && same(classes[i].module, module, n_module))
            return &classes[i];
    size_t at = n_name;
    while (at && name[at - 1] != '.')
        at--;
    while (at < n_name && name[at] == '_')
        at++;
    if (at == n_name || name[at] < 'A' || name[at] > 'Z')
        return NULL;
    for (size_t i = 0; i < sizeof class_modules / sizeof *class_modules; i++) {
        size_t n = strlen(class_modules[i]);
        if (n_module + 1 >= n && !memcmp(class_modules[i], module, n_module < n ? n_module : n) &&
            (n_module >= n || n_module == n - 1))
            return &some_class;
    }
    return NULL;
}
