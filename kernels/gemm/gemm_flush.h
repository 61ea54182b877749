/* gemm_flush.h - CHAIN_ENTER, CHAIN_LEAVE, PIN for classes that emulate the bf16 dot instruction.
 *
 * That instruction flushes denormals whatever MXCSR holds; the additions of the tree do not. So FTZ|DAZ is on
 * within a leaf only. PIN ties an accumulator to its place: without it the compiler may move arithmetic
 * across the change of mode; the memory clobber does the same for sums that are stored. */
#define CHAIN_ENTER \
    unsigned mode, flushing; \
    __asm__ volatile("stmxcsr %0" : "=m"(mode) : : "memory"); \
    flushing = mode | 0x8040u; \
    __asm__ volatile("ldmxcsr %0" : : "m"(flushing) : "memory");
#define CHAIN_LEAVE __asm__ volatile("ldmxcsr %0" : : "m"(mode) : "memory");
#define PIN(v) __asm__ volatile("" : "+v"(v));
