/* x W^T and its gradients for W = W~ * C_out C_in^T / k: the twin of product.py in one pass each.

native.py compiles this file at first use. It is included by itself, once for each precision.

Rows of W~ are sorted by code. Each block of rows with like codes reads only the columns that share
a cluster with them: weights are masked and moved together ("packed") right before they are
multiplied, in the processor's cache, and gradients are masked and spread out right after.
Activations lie in panels: a few examples at a time, all nodes, one row for each node.

Threads are those of the OpenMP library that torch has loaded. Which thread computes what follows
from their number alone, so the same draws give the same bits. */

#ifndef REAL

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define BYTES 64 /* of a vector */
#define WIDE 4   /* vectors in a row of a small product: all that fit into the registers */
#elif defined(__AVX2__) && defined(__FMA__)
#define BYTES 32
#define WIDE 2
#elif defined(__ARM_FEATURE_FMA) && defined(__aarch64__)
#define BYTES 16
#define WIDE 4
#else
#define BYTES 16
#define WIDE 2
#define SLOW
#endif

#define ROWS 6     /* of a small product */
#define DEEP 128   /* most columns that a block of rows reads at a time, and most rows in a pack */
#define PANEL 64   /* the same where the gradient of W~ is made */
#define SPAN 1024  /* most columns from the first to the last of these */
#define MANY 384   /* rows of a block whose gradients are made together */
#define FEW 24     /* codes of fewer rows are put together */
#define DENSE 0.75 /* above this share of pairs with a cluster in common, nothing is left out */
#define AHEAD 6    /* rows that are asked for before they are packed */
#define APART 64   /* bytes between what different threads write */
#define ANY UINT64_MAX /* the code of rows that read all columns */
#define INLINE static inline __attribute__((always_inline))

typedef struct {
    int64_t n, rows, columns, clusters, threads;
    int64_t sparse; /* pairs of nodes without a common cluster may be left out */
    int64_t half;   /* masked weights are rounded to bfloat16, as all else was before */
    const void *x, *weight, *c_out, *c_in, *bias;
    void *y;
    const void *delta;
    void *d_x, *d_weight, *d_out, *d_in, *scratch;
} layer;

typedef struct {
    int32_t first, end; /* rows, in the order of their codes */
    uint64_t code;      /* clusters that any of them has */
    int64_t sees;       /* how many columns share one */
} block;

typedef struct {
    void (*work)(void *, int64_t);
    void *data;
    int64_t parts;
} team;

extern void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));
extern int omp_get_thread_num(void) __attribute__((weak));
extern int omp_get_num_threads(void) __attribute__((weak));

/* Bit 0: fast enough on this processor. Bit 1: can use torch's threads. */
int blockout_abilities(void) {
#ifdef SLOW
    int fast = 0;
#else
    int fast = 1;
#endif
    return fast | (GOMP_parallel && omp_get_thread_num && omp_get_num_threads ? 2 : 0);
}

static void member(void *given) {
    team *all = given;
    for (int64_t i = omp_get_thread_num(); i < all->parts; i += omp_get_num_threads())
        all->work(all->data, i);
}

static void in_parallel(int64_t parts, void (*work)(void *, int64_t), void *data) {
    team all = {work, data, parts};
    if (parts > 1 && GOMP_parallel) GOMP_parallel(member, &all, (unsigned)parts, 0);
    else
        for (int64_t i = 0; i < parts; i++) work(data, i);
}

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t rounded_up(int64_t a, int64_t to) { return (a + to - 1) / to * to; }

/* The next part of the scratch memory; only counts without one. */
static void *cut(char **scratch, int64_t bytes) {
    char *found = *scratch;
    *scratch += rounded_up(bytes, APART) + APART;
    return found;
}

/* Memory that is always new, as so much is, is there sooner in few large pages. */
static void in_large_pages(void *memory, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    uintptr_t page = 1 << 21, start = ((uintptr_t)memory + page - 1) / page * page;
    if (bytes >= 1 << 25)
        madvise((void *)start, (uintptr_t)bytes / page * page - page, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

/* Sorts rows by code, bytes of codes from the last to the first; keeps the order of equals. */
static void sort(int64_t rows, int64_t clusters, const uint64_t *code, int32_t *order,
                 int32_t *other) {
    for (int64_t i = 0; i < rows; i++) order[i] = (int32_t)i;
    for (int64_t shift = 0; shift < clusters; shift += 8) {
        int32_t start[257] = {0};
        for (int64_t i = 0; i < rows; i++) start[(code[i] >> shift & 255) + 1]++;
        for (int i = 0; i < 256; i++) start[i + 1] += start[i];
        for (int64_t i = 0; i < rows; i++) other[start[code[order[i]] >> shift & 255]++] = order[i];
        memcpy(order, other, (size_t)rows * sizeof *order);
    }
}

/* One block for each code; after these, codes of few rows together. Changes the order to match. */
static int64_t group(int64_t rows, const uint64_t *code, int32_t *order, int32_t *later,
                     block *blocks) {
    int64_t count = 0, put = 0, left = 0;
    for (int64_t i = 0, end; i < rows; i = end) {
        uint64_t own = code[order[i]];
        for (end = i + 1; end < rows && code[order[end]] == own; end++) {
        }
        if (own && end - i < FEW) {
            memcpy(later + left, order + i, (size_t)(end - i) * sizeof *order);
            left += end - i;
            continue;
        }
        blocks[count++] = (block){(int32_t)put, (int32_t)(put + end - i), own, 0};
        memmove(order + put, order + i, (size_t)(end - i) * sizeof *order);
        put += end - i;
    }
    memcpy(order + put, later, (size_t)left * sizeof *order);
    for (int64_t i = put, open = 0; i < rows; i++) {
        int same = open && code[order[i]] == code[order[i - 1]];
        if (!open || (!same && i - blocks[count - 1].first >= FEW)) {
            blocks[count++] = (block){(int32_t)i, 0, 0, 0};
            open = 1;
        }
        blocks[count - 1].code |= code[order[i]];
        blocks[count - 1].end = (int32_t)i + 1;
    }
    return count;
}

#define JOINED(a, b) a##b
#define NAMED(a, b) JOINED(a, b)
#define REAL float
#define OWN(name) NAMED(name, _float)
#include "native.c"
#undef REAL
#undef OWN
#define REAL double
#define OWN(name) NAMED(name, _double)
#include "native.c"

#else /* once for each precision from here on */

#define LANES ((int64_t)(BYTES / sizeof(REAL)))
#define BATCH (WIDE * LANES) /* examples in a panel */
#define PITCH (DEEP + 16) /* between rows of a pack: no power of two, for the sake of the cache */
#define REACH (SPAN + 16) /* the same, of a gradient */

typedef REAL OWN(vector) __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));
typedef REAL OWN(aligned) __attribute__((vector_size(BYTES)));
typedef uint32_t OWN(words) __attribute__((vector_size(BYTES)));
#define VECTOR OWN(vector)

typedef struct {
    const layer *of;
    int64_t n, rows, columns, padded, clusters, width, panels, count, own_bytes;
    REAL *shares;         /* C_in^T / k, (clusters, padded) */
    REAL *by_in, *by_out; /* activations of both sides in panels */
    uint64_t *code_in;    /* of each column */
    int32_t *order;       /* of rows by code */
    block *blocks;
    int64_t *cuts; /* where the rows of each thread begin */
    char *own;     /* memory of each thread */
    REAL *d_in;    /* of each thread, (clusters, padded) */
    int backward;
} OWN(plan);
#define PLAN OWN(plan)

typedef struct {
    REAL *pack, *panel, *product, *of_mask, *d_out;
    int32_t *place, *cluster;
    uint16_t *sees;
    int64_t count; /* of clusters */
} OWN(bench);
#define BENCH OWN(bench)
#define SEEN(own, s) (own)->sees[(uint64_t)(s) / (uint64_t)LANES]

/* --- vectors ------------------------------------------------------------------------------- */

INLINE VECTOR OWN(load)(const REAL *from, int64_t count) {
    if (count >= LANES) return *(const VECTOR *)from;
    VECTOR v = {0};
    memcpy(&v, from, (size_t)count * sizeof(REAL));
    return v;
}

INLINE void OWN(store)(REAL *to, VECTOR v, int64_t count) {
    if (count >= LANES) *(VECTOR *)to = v;
    else memcpy(to, &v, (size_t)count * sizeof(REAL));
}

/* The nearest bfloat16, of two that are as near the even one. */
INLINE VECTOR OWN(rounded)(VECTOR v) {
    OWN(words) bits = (OWN(words))v, one = bits >> 16 & 1;
    return (VECTOR)(bits + (one + 0x7fff) & 0xffff0000);
}

/* Writes the chosen lanes one after the other, and something behind them. */
INLINE void OWN(squeeze)(REAL *to, VECTOR v, unsigned chosen) {
#ifdef __AVX512F__
    if (sizeof(REAL) == 4)
        _mm512_storeu_ps(to, _mm512_maskz_compress_ps((__mmask16)chosen, (__m512)v));
    else _mm512_storeu_pd(to, _mm512_maskz_compress_pd((__mmask8)chosen, (__m512d)v));
#else
    if (chosen == (1u << LANES) - 1) {
        *(VECTOR *)to = v;
        return;
    }
    for (int64_t i = 0; i < LANES; i++) {
        *to = v[i];
        to += chosen >> i & 1;
    }
#endif
}

/* The other way round, with zeros in the lanes that are not chosen. */
INLINE VECTOR OWN(spread)(const REAL *from, unsigned chosen) {
#ifdef __AVX512F__
    if (sizeof(REAL) == 4)
        return (VECTOR)_mm512_maskz_expand_ps((__mmask16)chosen, _mm512_loadu_ps(from));
    return (VECTOR)_mm512_maskz_expand_pd((__mmask8)chosen, _mm512_loadu_pd(from));
#else
    if (chosen == (1u << LANES) - 1) return *(const VECTOR *)from;
    VECTOR v = {0};
    for (int64_t i = 0; i < LANES; i++)
        if (chosen >> i & 1) v[i] = *from++;
    return v;
#endif
}

/* --- small products ------------------------------------------------------------------------ */

typedef struct {
    const REAL *a;
    int64_t next_row, next_term, next_part; /* in a */
    const REAL *b;                          /* (terms, width) */
    int64_t width, terms, part;             /* a has its terms in parts of so many */
    int fresh;                              /* does not add to what is there */
} OWN(factors);

INLINE void OWN(product)(const int rows, const int wide, const OWN(factors) *f, REAL *const *to) {
    OWN(aligned) sum[ROWS][WIDE];
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < wide; v++)
            sum[i][v] = f->fresh ? (VECTOR){0} : *(const VECTOR *)(to[i] + v * LANES);
    const REAL *b = f->b, *a = f->a;
    const int64_t next_row = f->next_row, next_term = f->next_term, width = f->width;
    for (int64_t done = 0; done < f->terms; done += f->part, a += f->next_part) {
        const REAL *at = a;
        for (int64_t j = least(f->part, f->terms - done); j > 0; j--, at += next_term, b += width) {
            OWN(aligned) row[WIDE];
#pragma GCC unroll 8
            for (int v = 0; v < wide; v++) row[v] = *(const VECTOR *)(b + v * LANES);
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) {
                const REAL one = at[i * next_row];
#pragma GCC unroll 8
                for (int v = 0; v < wide; v++) sum[i][v] += one * row[v];
            }
        }
    }
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < wide; v++) *(VECTOR *)(to[i] + v * LANES) = sum[i][v];
}

#define CASE(rows, wide)                 \
    case rows * 8 + wide:                \
        OWN(product)(rows, wide, f, to); \
        break;
#if WIDE == 4
#define CASES(rows) CASE(rows, 1) CASE(rows, 2) CASE(rows, 3) CASE(rows, 4)
#else
#define CASES(rows) CASE(rows, 1) CASE(rows, 2)
#endif

/* Adds a b to up to ROWS rows of up to WIDE vectors. */
static __attribute__((noinline, noclone)) void OWN(multiply)(int64_t rows, int64_t wide,
                                                             const OWN(factors) *f,
                                                             REAL *const *to) {
    switch (rows * 8 + wide) { CASES(1) CASES(2) CASES(3) CASES(4) CASES(5) CASES(6) }
}
#undef CASE
#undef CASES

/* --- what is seen -------------------------------------------------------------------------- */

/* Where the columns from `from` on end that can be read at a time; counts those that are seen. */
static int64_t OWN(stretch)(const BENCH *own, int64_t from, int64_t to, int64_t most,
                            int64_t *count) {
    int64_t s = from, found = 0;
    to = least(to, from + SPAN);
    for (; s < to; s += LANES) {
        int64_t more = __builtin_popcount(SEEN(own, s));
        if (found + more > most) break;
        found += more;
    }
    *count = found;
    return s;
}

static void OWN(list)(const BENCH *own, int64_t from, int64_t to) {
    int32_t *place = own->place;
    for (int64_t s = from; s < to; s += LANES)
        for (unsigned left = SEEN(own, s); left; left &= left - 1)
            *place++ = (int32_t)(s + __builtin_ctz(left));
}

/* The clusters that rows with this code may have, and which columns share one with them. */
static void OWN(look)(const PLAN *p, BENCH *own, uint64_t code, int64_t from, int64_t to) {
    own->count = 0;
    for (int64_t l = 0; l < p->clusters; l++)
        if (code == ANY || code >> l & 1) own->cluster[own->count++] = (int32_t)l;
    for (int64_t s = from; s < to; s += LANES) {
        unsigned found = 0;
        for (int64_t i = 0; i < LANES; i++)
            found |= (unsigned)((p->code_in[s + i] & code) != 0) << i;
        SEEN(own, s) = (uint16_t)found;
    }
}

/* C_j C_{j-1}^T / k of one row, four vectors from column s on. */
INLINE void OWN(make_mask)(const PLAN *p, const BENCH *own, int64_t row, int64_t s, REAL *mask) {
    const REAL *c = (const REAL *)p->of->c_out + row * p->clusters;
    OWN(aligned) sum[4] = {{0}};
    for (int64_t i = 0; i < own->count; i++) {
        const REAL *share = p->shares + own->cluster[i] * p->padded + s, one = c[own->cluster[i]];
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) sum[v] += one * *(const VECTOR *)(share + v * LANES);
    }
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) *(VECTOR *)(mask + v * LANES) = sum[v];
}

/* The masked weights of one row that are seen, one after the other. */
static void OWN(pack)(const PLAN *p, const BENCH *own, int64_t row, int64_t from, int64_t to,
                      REAL *packed) {
    const REAL *weight = (const REAL *)p->of->weight + row * p->columns;
    const int half = sizeof(REAL) == 4 && p->of->half;
    REAL mask[4 * BYTES / sizeof(REAL)];
    for (int64_t s = from; s < to; s += LANES) {
        if ((s - from) % (4 * LANES) == 0) OWN(make_mask)(p, own, row, s, mask);
        unsigned chosen = SEEN(own, s);
        VECTOR v =
            OWN(load)(weight + s, p->columns - s) * *(VECTOR *)(mask + (s - from) % (4 * LANES));
        if (half) v = OWN(rounded)(v);
        OWN(squeeze)(packed, v, chosen);
        packed += __builtin_popcount(chosen);
    }
}

/* Asks for weights that are needed soon. */
INLINE void OWN(fetch)(const PLAN *p, const void *of, const int writes, int64_t row, int64_t from,
                       int64_t to) {
    const REAL *at = (const REAL *)of + p->order[row] * p->columns;
    for (int64_t s = from; s < to; s += 64 / (int64_t)sizeof(REAL))
        if (writes) __builtin_prefetch(at + s, 1, 3);
        else __builtin_prefetch(at + s, 0, 2);
}

static void OWN(pack_rows)(const PLAN *p, const BENCH *own, int64_t first, int64_t end,
                           int64_t from, int64_t to) {
    for (int64_t t = first; t < end; t++) {
        if (t + AHEAD < end) OWN(fetch)(p, p->of->weight, 0, t + AHEAD, from, to);
        OWN(pack)(p, own, p->order[t], from, to, own->pack + (t - first) * PITCH);
    }
}

/* --- activations --------------------------------------------------------------------------- */

INLINE int64_t OWN(examples)(const PLAN *p, int64_t panel) {
    return least(p->width, p->n - panel * p->width);
}
INLINE int64_t OWN(vectors)(const PLAN *p, int64_t panel) {
    return (OWN(examples)(p, panel) + LANES - 1) / LANES;
}

/* From (n, nodes) to panels: `order` says which node comes where. */
static void OWN(to_panels)(const PLAN *p, const REAL *from, int64_t nodes, const int32_t *order,
                           int64_t first, int64_t end, REAL *to) {
    for (int64_t panel = 0; panel < p->panels; panel++) {
        int64_t here = OWN(examples)(p, panel);
        const REAL *rows = from + panel * p->width * nodes;
        REAL *out = to + panel * nodes * p->width;
        for (int64_t some = first; some < end; some += 16)
            for (int64_t i = 0; i < here; i += 16)
                for (int64_t s = some; s < least(some + 16, end); s++) {
                    const REAL *column = rows + (order ? order[s] : s);
                    for (int64_t j = i; j < least(i + 16, here); j++)
                        out[s * p->width + j] = column[j * nodes];
                }
        if (here < p->width)
            for (int64_t s = first; s < end; s++)
                memset(out + s * p->width + here, 0, (size_t)(p->width - here) * sizeof(REAL));
    }
}

/* And back, with a bias. */
static void OWN(from_panels)(const PLAN *p, const REAL *from, int64_t nodes, const int32_t *order,
                             const REAL *bias, int64_t first, int64_t end, REAL *to) {
    for (int64_t panel = 0; panel < p->panels; panel++) {
        int64_t here = OWN(examples)(p, panel);
        const REAL *in = from + panel * nodes * p->width;
        REAL *rows = to + panel * p->width * nodes;
        for (int64_t i = 0; i < here; i += 16)
            for (int64_t s = first; s < end; s++) {
                int64_t at = order ? order[s] : s;
                REAL more = bias ? bias[at] : 0;
                for (int64_t j = i; j < least(i + 16, here); j++)
                    rows[j * nodes + at] = in[s * p->width + j] + more;
            }
    }
}

/* --- the plan ------------------------------------------------------------------------------ */

static int64_t OWN(own_bytes)(const PLAN *p, BENCH *own, char *memory) {
    char *at = memory;
    own->pack = cut(&at, DEEP * PITCH * (int64_t)sizeof(REAL));
    own->panel =
        cut(&at, (p->n + 1) * PANEL * (int64_t)sizeof(REAL) + DEEP * BATCH * (int64_t)sizeof(REAL));
    own->product = cut(&at, ROWS * (PANEL + BATCH) * (int64_t)sizeof(REAL));
    own->of_mask = cut(&at, ROWS * REACH * (int64_t)sizeof(REAL));
    own->d_out = cut(&at, p->backward ? MANY * p->clusters * BYTES : 0);
    own->cluster = cut(&at, p->clusters * (int64_t)sizeof(int32_t));
    own->place = cut(&at, (DEEP + ROWS) * (int64_t)sizeof(int32_t));
    own->sees = cut(&at, p->padded / LANES * (int64_t)sizeof(uint16_t));
    return at - memory;
}

/* Sizes, and where everything lies in the scratch memory. Returns how many bytes it takes. */
static int64_t OWN(lay_out)(PLAN *p, const layer *of, int backward) {
    *p = (PLAN){.of = of,
                .n = of->n,
                .rows = of->rows,
                .columns = of->columns,
                .clusters = of->clusters,
                .backward = backward};
    p->padded = rounded_up(of->columns, LANES);
    p->width = least(BATCH, rounded_up(of->n, LANES));
    p->panels = (of->n + p->width - 1) / p->width;
    char *start = of->scratch, *at = start;
    int64_t real = sizeof(REAL), activations = p->panels * p->width * real;
    p->shares = cut(&at, (p->clusters * p->padded + 4 * LANES) * real);
    p->by_in = cut(&at, activations * (p->columns + 1));
    p->by_out = cut(&at, activations * p->rows);
    p->code_in = cut(&at, p->padded * 8);
    p->order = cut(&at, p->rows * 4);
    p->blocks = cut(&at, p->rows * (int64_t)sizeof(block));
    p->cuts = cut(&at, (of->threads + 1) * 8);
    p->d_in = cut(&at, backward ? of->threads * p->clusters * p->padded * real : 0);
    p->own = at; /* sorting uses it first */
    BENCH own;
    p->own_bytes = rounded_up(OWN(own_bytes)(p, &own, at), 4096);
    int64_t sorting = p->rows * 12, threads = of->threads * p->own_bytes;
    return at - start + (sorting > threads ? sorting : threads);
}

static void OWN(code)(const REAL *c, int64_t nodes, int64_t clusters, uint64_t *code) {
    for (int64_t i = 0; i < nodes; i++) {
        code[i] = 0;
        for (int64_t l = 0; l < clusters; l++) code[i] |= (uint64_t)(c[i * clusters + l] != 0) << l;
    }
}

/* Blocks of rows with like codes; false if little would be left out. */
static int OWN(find_blocks)(PLAN *p) {
    uint64_t *code = (uint64_t *)p->own, any = 0;
    int32_t *other = (int32_t *)(code + p->rows);
    if (!p->of->sparse || p->clusters > 64) return 0;
    OWN(code)(p->of->c_out, p->rows, p->clusters, code);
    OWN(code)(p->of->c_in, p->columns, p->clusters, p->code_in);
    for (int64_t s = 0; s < p->columns; s++) any |= p->code_in[s];
    for (int64_t t = 0; t < p->rows; t++) code[t] &= any;
    sort(p->rows, p->clusters, code, p->order, other);
    p->count = group(p->rows, code, p->order, other, p->blocks);
    double pairs = 0;
    for (int64_t i = 0; i < p->count; i++) {
        block *one = p->blocks + i;
        for (int64_t s = 0; s < p->columns; s++) one->sees += (p->code_in[s] & one->code) != 0;
        pairs += (double)one->sees * (one->end - one->first);
    }
    return pairs <= DENSE * (double)p->rows * (double)p->columns;
}

/* Where the rows of each thread begin, at equal shares of the work. */
static void OWN(share_out)(PLAN *p) {
    double total = 0, so_far = 0;
    int64_t next = 1, threads = p->of->threads;
    for (int64_t i = 0; i < p->count; i++)
        total +=
            (double)(p->blocks[i].sees + p->columns / 8) * (p->blocks[i].end - p->blocks[i].first);
    p->cuts[0] = 0;
    for (int64_t i = 0; i < p->count; i++)
        for (int64_t t = p->blocks[i].first; t < p->blocks[i].end; t += ROWS) {
            while (next < threads && so_far >= total * (double)next / (double)threads)
                p->cuts[next++] = t;
            so_far += (double)(p->blocks[i].sees + p->columns / 8) *
                      (double)least(ROWS, p->blocks[i].end - t);
        }
    while (next <= threads) p->cuts[next++] = p->rows;
}

static void OWN(prepare)(PLAN *p) {
    const REAL *c_in = p->of->c_in;
    memset(p->code_in, 0, (size_t)p->padded * 8);
    if (!OWN(find_blocks)(p)) {
        for (int64_t t = 0; t < p->rows; t++) p->order[t] = (int32_t)t;
        for (int64_t s = 0; s < p->columns; s++) p->code_in[s] = ANY;
        p->count = 1;
        p->blocks[0] = (block){0, (int32_t)p->rows, ANY, p->columns};
    }
    OWN(share_out)(p);
    for (int64_t l = 0; l < p->clusters; l++) {
        REAL *share = p->shares + l * p->padded;
        for (int64_t s = 0; s < p->columns; s++)
            share[s] = c_in[s * p->clusters + l] / (REAL)p->clusters;
        memset(share + p->columns, 0, (size_t)(p->padded - p->columns) * sizeof(REAL));
    }
}

/* --- forward ------------------------------------------------------------------------------- */

static void OWN(read_x)(void *plan, int64_t part) {
    PLAN *p = plan;
    int64_t each = rounded_up((p->columns + p->of->threads - 1) / p->of->threads, 16);
    OWN(to_panels)(p, p->of->x, p->columns, NULL, least(part * each, p->columns),
                   least((part + 1) * each, p->columns), p->by_in);
}

/* Rows first..end of a block, with the columns from..to of which `count` are seen. */
static void OWN(multiply_rows)(const PLAN *p, const BENCH *own, int64_t first, int64_t end,
                               int64_t from, int64_t to, int64_t count) {
    OWN(pack_rows)(p, own, first, end, from, to);
    for (int64_t panel = 0; panel < p->panels; panel++) {
        const REAL *in = p->by_in + panel * p->columns * p->width;
        OWN(factors) f = {0, PITCH, 1, 0, in + from * p->width, p->width, count, count, 0};
        if (count < least(to, p->columns) - from) {
            for (int64_t j = 0; j < count; j++)
                memcpy(own->panel + j * p->width, in + own->place[j] * p->width,
                       (size_t)p->width * sizeof(REAL));
            f.b = own->panel;
        }
        for (int64_t t = first; t < end; t += ROWS) {
            REAL *out = p->by_out + (panel * p->rows + t) * p->width, *rows[ROWS];
            for (int i = 0; i < ROWS; i++) rows[i] = out + i * p->width;
            f.a = own->pack + (t - first) * PITCH;
            OWN(multiply)(least(ROWS, end - t), OWN(vectors)(p, panel), &f, rows);
        }
    }
}

static void OWN(make_y)(void *plan, int64_t part) {
    PLAN *p = plan;
    BENCH own;
    OWN(own_bytes)(p, &own, p->own + part * p->own_bytes);
    for (int64_t panel = 0; panel < p->panels; panel++)
        memset(p->by_out + (panel * p->rows + p->cuts[part]) * p->width, 0,
               (size_t)((p->cuts[part + 1] - p->cuts[part]) * p->width) * sizeof(REAL));
    for (int64_t i = 0; i < p->count; i++) {
        block one = p->blocks[i];
        int64_t first = one.first > p->cuts[part] ? one.first : p->cuts[part];
        int64_t end = least(one.end, p->cuts[part + 1]), count;
        if (first >= end || !one.sees) continue;
        OWN(look)(p, &own, one.code, 0, p->padded);
        for (int64_t s = 0, next; s < p->padded; s = next) {
            next = OWN(stretch)(&own, s, p->padded, DEEP, &count);
            if (!count) continue;
            OWN(list)(&own, s, next);
            for (int64_t t = first; t < end; t += DEEP / ROWS * ROWS)
                OWN(multiply_rows)(p, &own, t, least(t + DEEP / ROWS * ROWS, end), s, next, count);
        }
    }
}

static void OWN(write_y)(void *plan, int64_t part) {
    PLAN *p = plan;
    int64_t each = rounded_up((p->rows + p->of->threads - 1) / p->of->threads, 16);
    OWN(from_panels)(p, p->by_out, p->rows, p->order, p->of->bias, least(part * each, p->rows),
                     least((part + 1) * each, p->rows), p->of->y);
}

/* --- backward ------------------------------------------------------------------------------ */

static void OWN(read_delta)(void *plan, int64_t part) {
    PLAN *p = plan;
    int64_t each = rounded_up((p->rows + p->of->threads - 1) / p->of->threads, 16);
    OWN(to_panels)(p, p->of->delta, p->rows, p->order, least(part * each, p->rows),
                   least((part + 1) * each, p->rows), p->by_out);
}

/* dL/dx += delta W (Eq. 7) of some rows, and of columns of which `count` are seen. */
static void OWN(add_columns)(const PLAN *p, const BENCH *own, int64_t first, int64_t end,
                             int64_t from, int64_t to, int64_t count) {
    OWN(pack_rows)(p, own, first, end, from, to);
    for (int64_t panel = 0; panel < p->panels; panel++) {
        REAL *in = p->by_in + panel * p->columns * p->width, *rows[ROWS];
        const REAL *out = p->by_out + (panel * p->rows + first) * p->width;
        OWN(factors) f = {0, 1, PITCH, 0, out, p->width, end - first, end - first, 0};
        for (int64_t j = 0; j < count; j += ROWS) {
            for (int64_t i = 0; i < least(ROWS, count - j); i++)
                rows[i] = in + own->place[j + i] * p->width;
            f.a = own->pack + j;
            OWN(multiply)(least(ROWS, count - j), OWN(vectors)(p, panel), &f, rows);
        }
    }
}

static void OWN(make_d_x)(PLAN *p, BENCH *own, int64_t part) {
    int64_t each = rounded_up((p->columns + p->of->threads - 1) / p->of->threads, 64);
    int64_t from = least(part * each, p->padded), to = least(from + each, p->padded), count;
    int64_t ends = least(to, p->columns);
    if (from >= ends) return;
    for (int64_t panel = 0; panel < p->panels; panel++)
        memset(p->by_in + (panel * p->columns + from) * p->width, 0,
               (size_t)((ends - from) * p->width) * sizeof(REAL));
    for (int64_t i = 0; i < p->count; i++) {
        block one = p->blocks[i];
        if (!one.sees) continue;
        OWN(look)(p, own, one.code, from, to);
        for (int64_t first = one.first; first < one.end; first += DEEP)
            for (int64_t s = from, next; s < to; s = next) {
                next = OWN(stretch)(own, s, to, DEEP, &count);
                if (!count) continue;
                OWN(list)(own, s, next);
                OWN(add_columns)(p, own, first, least(first + DEEP, one.end), s, next, count);
            }
    }
    OWN(from_panels)(p, p->by_in, p->columns, NULL, NULL, from, ends, p->of->d_x);
}

/* The columns of x that are seen, as panels of (n, BATCH). */
static void OWN(gather_x)(const PLAN *p, const BENCH *own, int64_t from, int64_t to) {
    REAL row[PANEL + BYTES / sizeof(REAL)];
    memset(row, 0, sizeof row);
    for (int64_t i = 0; i < p->n; i++) {
        const REAL *x = (const REAL *)p->of->x + i * p->columns;
        REAL *at = row;
        for (int64_t s = from; s < to; s += LANES) {
            unsigned chosen = SEEN(own, s);
            if (!chosen) continue;
            OWN(squeeze)(at, OWN(load)(x + s, p->columns - s), chosen);
            at += __builtin_popcount(chosen);
        }
        for (int64_t j = 0; j < at - row; j += BATCH)
            memcpy(own->panel + j * p->n + i * BATCH, row + j, BATCH * sizeof(REAL));
    }
}

/* dL/dW~ = G * mask (Eq. 8) of a few rows, of which G is known; leaves W~ * G in `of_mask`. */
static void OWN(mask_gradient)(const PLAN *p, const BENCH *own, int64_t first, int64_t rows,
                               int64_t from, int64_t to) {
    if (rows < ROWS)
        memset(own->of_mask + rows * REACH, 0, (size_t)((ROWS - rows) * REACH) * sizeof(REAL));
    for (int64_t i = 0; i < rows; i++) {
        int64_t row = p->order[first + i];
        const REAL *weight = (const REAL *)p->of->weight + row * p->columns;
        REAL *d_weight = p->of->d_weight ? (REAL *)p->of->d_weight + row * p->columns : NULL;
        const REAL *g = own->product + i * PANEL;
        REAL mask[4 * BYTES / sizeof(REAL)];
        for (int64_t s = from; s < to; s += LANES) {
            if ((s - from) % (4 * LANES) == 0) OWN(make_mask)(p, own, row, s, mask);
            unsigned chosen = SEEN(own, s);
            VECTOR v = OWN(spread)(g, chosen);
            g += __builtin_popcount(chosen);
            if (d_weight)
                OWN(store)(d_weight + s, v * *(VECTOR *)(mask + (s - from) % (4 * LANES)),
                           p->columns - s);
            *(VECTOR *)(own->of_mask + i * REACH + s - from) =
                v * OWN(load)(weight + s, p->columns - s);
        }
    }
}

/* Adds [W~ * G] C / k of a few rows for both sides; lane by lane for the rows. */
static void OWN(add_memberships)(const PLAN *p, const BENCH *own, int64_t part, int64_t first,
                                 int64_t rows, int64_t from, int64_t to, REAL *d_out) {
    const REAL *c[ROWS], *h = own->of_mask;
    for (int64_t i = 0; i < rows; i++)
        c[i] = (const REAL *)p->of->c_out + p->order[first + i] * p->clusters;
    for (int64_t j = 0; j < own->count; j++) {
        int64_t l = own->cluster[j];
        REAL *d_in = p->d_in + (part * p->clusters + l) * p->padded + from;
        const REAL *share = p->shares + l * p->padded + from;
        OWN(aligned) sum[ROWS] = {{0}};
        REAL of[ROWS] = {0};
        for (int64_t i = 0; i < rows; i++) of[i] = c[i][l];
        for (int64_t s = 0; s < to - from; s += LANES) {
            VECTOR total = *(VECTOR *)(d_in + s), at = *(const VECTOR *)(share + s);
#pragma GCC unroll 8
            for (int64_t i = 0; i < ROWS; i++) {
                VECTOR one = *(const VECTOR *)(h + i * REACH + s);
                total += of[i] * one;
                sum[i] += at * one;
            }
            *(VECTOR *)(d_in + s) = total;
        }
        for (int64_t i = 0; i < rows; i++)
            *(VECTOR *)(d_out + (i * p->clusters + l) * LANES) += sum[i];
    }
}

/* Rows first..end of a block, with the columns from..to of which `count` are seen. */
static void OWN(make_d_rows)(const PLAN *p, const BENCH *own, int64_t part, int64_t first,
                             int64_t end, int64_t from, int64_t to, int64_t count) {
    OWN(gather_x)(p, own, from, to);
    for (int64_t t = first; t < end; t += ROWS) {
        int64_t rows = least(ROWS, end - t);
        for (int64_t i = t; i < t + rows; i++) { /* used after their product */
            OWN(fetch)(p, p->of->weight, 0, i, from, to);
            if (p->of->d_weight) OWN(fetch)(p, p->of->d_weight, 1, i, from, to);
        }
        for (int64_t j = 0; j < count; j += BATCH) {
            REAL *into[ROWS];
            for (int i = 0; i < ROWS; i++) into[i] = own->product + i * PANEL + j;
            OWN(factors)
            f = {p->by_out + t * p->width,
                 p->width,
                 1,
                 p->rows * p->width,
                 own->panel + j * p->n,
                 BATCH,
                 p->n,
                 p->width,
                 1};
            OWN(multiply)(rows, least(WIDE, (count - j + LANES - 1) / LANES), &f, into);
        }
        OWN(mask_gradient)(p, own, t, rows, from, to);
        if (p->of->d_out)
            OWN(add_memberships)(p, own, part, t, rows, from, to,
                                 own->d_out + (t - first) * p->clusters * LANES);
    }
}

static void OWN(make_d_block)(const PLAN *p, const BENCH *own, int64_t part, int64_t first,
                              int64_t end) {
    int64_t count, clusters = p->clusters;
    if (p->of->d_out) memset(own->d_out, 0, (size_t)((end - first) * clusters) * BYTES);
    for (int64_t s = 0, next; s < p->padded; s = next) {
        next = OWN(stretch)(own, s, p->padded, PANEL, &count);
        OWN(make_d_rows)(p, own, part, first, end, s, next, count);
    }
    if (!p->of->d_out) return;
    for (int64_t t = first; t < end; t++)
        for (int64_t l = 0; l < clusters; l++) {
            REAL sum = 0;
            for (int64_t i = 0; i < LANES; i++)
                sum += own->d_out[((t - first) * clusters + l) * LANES + i];
            ((REAL *)p->of->d_out)[p->order[t] * clusters + l] = sum;
        }
}

static void OWN(make_d_weight)(PLAN *p, BENCH *own, int64_t part) {
    memset(p->d_in + part * p->clusters * p->padded, 0,
           (size_t)(p->clusters * p->padded) * sizeof(REAL));
    for (int64_t i = 0; i < p->count; i++) {
        block one = p->blocks[i];
        int64_t first = one.first > p->cuts[part] ? one.first : p->cuts[part];
        int64_t end = least(one.end, p->cuts[part + 1]);
        if (first >= end) continue;
        OWN(look)(p, own, one.code, 0, p->padded);
        for (; first < end; first += MANY)
            OWN(make_d_block)(p, own, part, first, least(first + MANY, end));
    }
}

static void OWN(make_gradients)(void *plan, int64_t part) {
    PLAN *p = plan;
    BENCH own;
    OWN(own_bytes)(p, &own, p->own + part * p->own_bytes);
    if (p->of->d_x) OWN(make_d_x)(p, &own, part);
    if (p->of->d_weight || p->of->d_out) OWN(make_d_weight)(p, &own, part);
}

/* --- what native.py calls ------------------------------------------------------------------ */

int64_t OWN(blockout_scratch)(const layer *of, int backward) {
    PLAN p;
    return OWN(lay_out)(&p, of, backward);
}

/* y = x W^T + b */
void OWN(blockout_forward)(const layer *of) {
    PLAN p;
    OWN(lay_out)(&p, of, 0);
    OWN(prepare)(&p);
    in_parallel(of->threads, OWN(read_x), &p);
    in_parallel(of->threads, OWN(make_y), &p);
    in_parallel(of->threads, OWN(write_y), &p);
}

/* The gradients of x, W~ and both C that are asked for. */
void OWN(blockout_backward)(const layer *of) {
    PLAN p;
    OWN(lay_out)(&p, of, 1);
    OWN(prepare)(&p);
    if (of->d_weight) in_large_pages(of->d_weight, of->rows * of->columns * (int64_t)sizeof(REAL));
    in_parallel(of->threads, OWN(read_delta), &p);
    in_parallel(of->threads, OWN(make_gradients), &p);
    if (!of->d_in) return;
    REAL *d_in = of->d_in;
    for (int64_t s = 0; s < p.columns; s++)
        for (int64_t l = 0; l < p.clusters; l++) {
            REAL sum = 0;
            for (int64_t part = 0; part < of->threads; part++)
                sum += p.d_in[(part * p.clusters + l) * p.padded + s];
            d_in[s * p.clusters + l] = sum / (REAL)p.clusters;
        }
}

#undef LANES
#undef BATCH
#undef PITCH
#undef REACH
#undef VECTOR
#undef PLAN
#undef BENCH
#undef SEEN

#endif
