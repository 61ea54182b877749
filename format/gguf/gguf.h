/* gguf.h - private to the room: the tables of GGUF that its reader and its writer share. Types of tensors and
 * of metadata, and for each architecture how Hugging Face and GGUF name and store the same tensor and the
 * same setting. Constant data and pure functions: any thread may use them.
 *
 * A GGUF file: "GGUF", u32 version, u64 number of tensors, u64 number of keys; the keys (text, u32 type,
 * value); the tensors (text, u32 n_dims, u64 dims with the fastest first, u32 type, u64 offset in the data);
 * data from the next multiple of general.alignment (32) on, each tensor at one. A text is a u64 length and
 * its bytes. All numbers are little-endian. Source: ggml's specification of GGUF. */
#ifndef SHARDLINE_FORMAT_GGUF_GGUF_H
#define SHARDLINE_FORMAT_GGUF_GGUF_H

#include <stdint.h>
#include "format/stored_dtype.h"

#define GGUF_MAGIC "GGUF"
#define GGUF_VERSION 3
#define GGUF_ALIGNMENT 32
#define GGUF_DIMS 4

/* ---- types of tensors ---- */

/* Numbers as in the file. Of those without a decoder (gguf_block.h) only the size is known. */
enum gguf_type {
    GGUF_F32 = 0,
    GGUF_F16 = 1,
    GGUF_Q4_0 = 2,
    GGUF_Q4_1 = 3,
    GGUF_Q5_0 = 6,
    GGUF_Q5_1 = 7,
    GGUF_Q8_0 = 8,
    GGUF_Q2_K = 10,
    GGUF_Q3_K = 11,
    GGUF_Q4_K = 12,
    GGUF_Q5_K = 13,
    GGUF_Q6_K = 14,
    GGUF_IQ2_XXS = 16,
    GGUF_IQ2_XS = 17,
    GGUF_IQ3_XXS = 18,
    GGUF_IQ1_S = 19,
    GGUF_IQ4_NL = 20,
    GGUF_IQ3_S = 21,
    GGUF_IQ2_S = 22,
    GGUF_IQ4_XS = 23,
    GGUF_I8 = 24,
    GGUF_I16 = 25,
    GGUF_I32 = 26,
    GGUF_I64 = 27,
    GGUF_F64 = 28,
    GGUF_IQ1_M = 29,
    GGUF_BF16 = 30,
    GGUF_TQ1_0 = 34,
    GGUF_TQ2_0 = 35,
    GGUF_MXFP4 = 39,
    GGUF_NVFP4 = 40
};
struct gguf_type_row {
    enum gguf_type id;
    const char *name;
    int values, bytes; /* of a block; 1 value: not quantised */
    int dtype;         /* enum stored_dtype; -1: blocks */
    int file_type;     /* general.file_type of a file whose matrices have this type; -1: there is none */
};
/* The row of a type's number, or of its name ("Q4_K", case does not count). NULL: this program does not know
 * it. */
const struct gguf_type_row *gguf_type_row(uint32_t id);
const struct gguf_type_row *gguf_type_named(const char *name);

/* ---- types of metadata ---- */

enum gguf_value {
    GGUF_VALUE_U8,
    GGUF_VALUE_I8,
    GGUF_VALUE_U16,
    GGUF_VALUE_I16,
    GGUF_VALUE_U32,
    GGUF_VALUE_I32,
    GGUF_VALUE_F32,
    GGUF_VALUE_BOOL,
    GGUF_VALUE_TEXT,
    GGUF_VALUE_ARRAY, /* u32 type of its elements, u64 number, elements */
    GGUF_VALUE_U64,
    GGUF_VALUE_I64,
    GGUF_VALUE_F64,
    GGUF_VALUES
};
/* Bytes of a value; 0: text and arrays, which say their own. */
int gguf_value_bytes(enum gguf_value t);

/* tokenizer.ggml.token_type */
enum gguf_token { GGUF_NORMAL = 1, GGUF_UNKNOWN, GGUF_CONTROL, GGUF_USER_DEFINED, GGUF_UNUSED, GGUF_BYTE };

/* ---- tensors of an architecture ---- */

/* How a Hugging Face tensor lies in its GGUF tensor. Shapes are written slowest dim first, as torch does. */
enum gguf_form {
    GGUF_SAME,
    /* Rows of q or k, head by head: row i of half s of a head [2][d/2] is its row 2 i + s in the file. The
     * heads are num_attention_heads or num_key_value_heads. */
    GGUF_ROPE_Q,
    GGUF_ROPE_K,
    GGUF_PLUS_ONE,   /* the file has 1 + w, in fp32 */
    GGUF_TRANSPOSED, /* the last two dims change places */
    GGUF_ROW,        /* [1, n]; in the file [n] or [1, n] */
    GGUF_QKV,        /* GPT-NeoX: rows [heads][q k v][d] are [q k v][heads][d] in the file */
    GGUF_EXPERT,     /* one of the file's [experts, …] */
    /* gpt-oss: the even (gate) or odd (up) columns of [experts, in, 2 n], which is [experts, n, in] in the
     * file; of a bias [experts, 2 n] it is [experts, n]. */
    GGUF_EVEN,
    GGUF_ODD,
    /* DeepSeek: rows [heads][nope + v] of kv_b: nope rows of each head transposed ([heads, rank, nope]), or
     * the v rows ([heads, v, rank]). */
    GGUF_KEY_B,
    GGUF_VALUE_B
};
/* A name holds %d for the number of the layer, and a second one for that of the expert (GGUF_EXPERT). Two
 * rows with one hf: the tensor lies in two of the file. */
struct gguf_name {
    const char *hf, *file;
    enum gguf_form form;
};

/* ---- settings of an architecture ---- */

/* A key of config.json and the key of the file that holds its number. file: behind "ARCH.", or the whole key
 * where it begins with "general." or "tokenizer.". A second row of the same hf is a second place of the
 * number. What is not a plain copy (rope scaling, layers with windows or experts, query_pre_attn_scalar) is
 * not in the table. */
struct gguf_key {
    const char *hf, *file;
    enum gguf_value type; /* that the writer uses: U32, F32 or BOOL */
};

enum gguf_flag {
    GGUF_HAS_EXPERTS = 1,
    GGUF_TIED = 2,   /* the file never has a head of its own */
    GGUF_SIGMOID = 4 /* of two families of one architecture the one whose router has expert_gating_func 2 */
};
struct gguf_family {
    const char *arch;                      /* general.architecture */
    const char *model_type, *architecture; /* of config.json */
    unsigned flags;
    const struct gguf_name *names; /* ended by hf NULL */
    const struct gguf_key *keys;   /* ended by hf NULL */
};
/* The family of config.json's model_type, or of a file. NULL: unknown. experts: the file has expert_count >
 * 0; sigmoid: its experts are chosen by sigmoid. */
const struct gguf_family *gguf_family_of_config(const char *model_type);
const struct gguf_family *gguf_family_of_file(const char *arch, int experts, int sigmoid);
/* Row i of the table, for a list of all; NULL: behind the last. */
const struct gguf_family *gguf_family_row(int i);

/* Room for a name with its numbers. */
#define GGUF_NAME_MAX 256
/* Fills a pattern (struct gguf_name) with its numbers. Returns out. */
const char *gguf_fill(const char *pattern, int layer, int expert, char out[GGUF_NAME_MAX]);
/* 1: name is the pattern with numbers in it; *layer and *expert: those, -1 where the pattern has none. */
int gguf_match(const char *pattern, const char *name, int *layer, int *expert);
/* The first row, from `from` on, whose hf (or file) matches the name; NULL: none. from: f->names, or the row
 * behind one that was found. */
const struct gguf_name *gguf_find_hf(const struct gguf_name *from, const char *name, int *layer, int *expert);
const struct gguf_name *gguf_find_file(const struct gguf_name *from, const char *name, int *layer);

/* 1: llama.cpp wants this tensor of the file in fp32, whatever the type of the matrices: vectors, norms,
 * routers, positions, biases, sinks. */
int gguf_is_f32(const char *file_name, int n_dims);

#endif
