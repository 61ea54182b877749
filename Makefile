# Shardline: `make help` lists the targets. A variable is a decision, a pattern rule a language. Every CONFIG has a build folder of its
# own (build/release, build/sanitize, …), so that objects of different flags never mix; build/bin is a link to the current one.

CC      ?= gcc
CONFIG  ?= release
V       ?= 0
Q       := $(if $(filter 0,$V),@)
# as many jobs as cores, where no -j is given; in recipes only, where MAKEFLAGS is complete
JOBS     = $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(shell nproc))
PREFIX  ?= /usr/local
DESTDIR ?=
FIXTURES ?=
export FIXTURES

B := build/$(CONFIG)
LINK := $(if $(filter build/$(CONFIG),$B),link)
# fuzz: clang builds the rooms that read foreign bytes, without its warnings; it does not compile the kernels
ROOMS := $(if $(filter fuzz,$(CONFIG)),base store format model text reshard serve,base store kernels comm format model text train reshard serve)

WARN  := -Wall -Wextra -Werror -Wno-missing-field-initializers -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wwrite-strings -Wvla -Wpointer-arith -Wformat=2
# -ffp-contract=off: the numerics contract fixes every operation and its order; no fast-math anywhere
FLAGS_release  := -O3
FLAGS_sanitize := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
FLAGS_altered  := -O1 -DSHARDLINE_ALTER
FLAGS_fuzz     := -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -w
CFLAGS_ALL := -std=gnu11 -g -ffp-contract=off -fno-math-errno -pthread $(WARN) $(FLAGS_$(CONFIG)) -I. $(CFLAGS)

# external libraries; MPI by its pkg-config file and not by its compiler wrapper: one compiler for all files
PKGS := ompi-c jansson libxxhash libzstd libmicrohttpd libcurl libpcre2-8 libutf8proc
CFLAGS_PKG = $(shell pkg-config --cflags $(PKGS) 2>/dev/null | sed 's/-I/-isystem /g')
LIBS       = $(shell pkg-config --libs $(PKGS) 2>/dev/null) $(if $(CUDA),$(LIBS_CUDA)) -ldl -lm -pthread

# CUDA where nvcc is found (CUDA= builds without it). The runtime is linked statically, so that programs start without a driver. Machine code for
# the GPUs named here, PTX of the first for later ones.
NVCC      ?= $(firstword $(wildcard /usr/local/cuda/bin/nvcc) $(shell command -v nvcc 2>/dev/null))
CUDA      ?= $(if $(and $(filter release,$(CONFIG)),$(shell command -v g++)),$(patsubst %/bin/nvcc,%,$(NVCC)))
CUDA_ARCH ?= 80 90 120
NVFLAGS   := -std=c++20 -O3 -lineinfo -Xfatbin=-compress-all -I. -fmad=false -ftz=false -prec-div=true -prec-sqrt=true --threads 2 -Werror all-warnings \
             -Xcompiler -Wall,-Wextra,-Werror,-Wno-missing-field-initializers
SM_90A    := -gencode arch=compute_90a,code=sm_90a
NVCODE    := -gencode arch=compute_80,code=compute_80 $(foreach a,$(CUDA_ARCH),-gencode arch=compute_$(a),code=sm_$(a))
CFLAGS_CUDA = -isystem $(CUDA)/include
LIBS_CUDA   = $(CUDA)/lib64/libcudart_static.a -lrt -lstdc++

# The CUDA device compiled for a CPU (tests/devices/emu), for tests/unit/cuda/cuda_emu_*_test. Release: emu/shadow.c checks every access of memory
# through the calls that -fsanitize=thread inserts (it replaces that library); sanitize: the sanitizers check.
CU_SRC    := $(wildcard kernels/cuda/*.cu kernels/cuda/*/*.cu)
EMU_SRC   := $(filter-out %/none.c,$(wildcard kernels/cuda/*.c kernels/cuda/*/*.c)) $(wildcard tests/devices/emu/*.c)
EMU_OBJ   := $(CU_SRC:%.cu=$B/emu/%.o) $(EMU_SRC:%.c=$B/emu/%.o)
EMU_FLAGS := -x c++ -std=c++20 -g -pthread -Wno-psabi -ffp-contract=off -fno-math-errno -fno-exceptions -fno-rtti -Wall -Wextra -Werror -Wno-missing-field-initializers -I. \
             -isystem tests/devices/emu -include tests/devices/emu/words.h -DCUDA_EMU -D__CUDACC__ \
             $(if $(filter sanitize,$(CONFIG)),$(FLAGS_sanitize),-O2 $(filter -D%,$(FLAGS_$(CONFIG))) -fsanitize=thread)

# only plot needs libpng
$B/obj/tools/plot_main.o: CFLAGS_PKG += $(shell pkg-config --cflags libpng 2>/dev/null | sed 's/-I/-isystem /g')
$B/bin/plot: LIBS += $(shell pkg-config --libs libpng 2>/dev/null)

# CPU class by file name
ISA_avx2       := -mavx2 -mfma -mf16c
ISA_avx512     := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -mprefer-vector-width=512
ISA_avx512bf16 := $(ISA_avx512) -mavx512bf16
ISA_avx512vnni := $(ISA_avx512bf16) -mavx512vbmi -mavx512vnni
isa_of = $(foreach i,avx2 avx512 avx512bf16 avx512vnni,$(if $(filter %_$(i),$(basename $(1))),$(ISA_$(i))))

# the files of every room and of its inner rooms; of the CUDA device those that this machine can compile
CUDA_SRC := $(if $(CUDA),$(filter-out %/none.c,$(wildcard kernels/cuda/*.c kernels/cuda/*/*.c)),$(patsubst %,kernels/cuda/%.c,none lt/lt lt/lt_ops lt/lt_table))
LIB_SRC  := $(filter-out %_main.c kernels/cuda/%,$(wildcard $(addsuffix /*.c,$(ROOMS)) $(addsuffix /*/*.c,$(ROOMS)))) $(if $(filter kernels,$(ROOMS)),$(CUDA_SRC),kernels/tree.c)
LIB_OBJ  := $(LIB_SRC:%.c=$B/obj/%.o) $(if $(and $(CUDA),$(filter kernels,$(ROOMS))),$(CU_SRC:%.cu=$B/obj/%.o))
MAIN_SRC := $(wildcard $(addsuffix /*_main.c,$(ROOMS) tools))
PROGS    := $(foreach m,$(MAIN_SRC),$B/bin/$(notdir $(m:_main.c=))) $(if $(filter fuzz,$(CONFIG)),,$B/bin/shardline-plot)
TEST_SRC := $(wildcard tests/unit/*/*_test.c tests/ranks/*_test.c)
TESTS    := $(TEST_SRC:%.c=$B/%)
FUZZ_SRC := $(wildcard tests/fuzz/*_fuzz.c tests/fuzz/*/*_fuzz.c)
FUZZERS  := $(FUZZ_SRC:%.c=$B/%)
BENCH_SRC := $(wildcard tests/bench/*_bench.c tests/bench/*/*_bench.c)
BENCHES  := $(BENCH_SRC:%.c=$B/%)

# these targets call make again; two of them at a time would build the library twice
ifneq ($(and $(word 2,$(MAKECMDGOALS)),$(filter all programs tests benches test,$(MAKECMDGOALS))),)
.NOTPARALLEL:
endif
.PHONY: all programs tests benches fuzzers fuzz link setup-check demo test test-all bench bench-reshard bench-train bench-serve bench-foreign sanitize check check-layers style-check check-names tidy install dist deb clean help
all: programs
programs: setup-check
	@$(MAKE) --no-print-directory $(JOBS) $(if $(Q),-s) $(PROGS) $(LINK)

link:
	@mkdir -p build && ln -sfn $(CONFIG)/bin build/bin

# prints the command that installs what is missing, and fails
setup-check:
	@tools/setup --check >/dev/null || { echo "make: or let tools/setup run it" >&2; exit 1; }

$B/obj/%.o: %.c
	@mkdir -p $(@D)
	$(if $(Q),@echo "  cc    $<")
	$(Q)$(CC) $(CFLAGS_ALL) $(CFLAGS_PKG) $(call isa_of,$<) -MMD -MP -c -o $@ $<

$B/obj/%.o: %.cu
	@mkdir -p $(@D)
	$(if $(Q),@echo "  nvcc  $<")
	$(Q)$(if $(findstring ccache,$(CC)),ccache) $(NVCC) $(NVFLAGS) $(NVCODE) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<
$B/obj/kernels/cuda/%.o: CFLAGS_PKG += $(CFLAGS_CUDA)
# wgmma exists on sm_90a only; for other GPUs this object's kernels are empty
$B/obj/kernels/cuda/gemm/wgmma.o: NVCODE := -gencode arch=compute_80,code=compute_80 $(if $(filter 90,$(CUDA_ARCH)),$(SM_90A))

$B/emu/%.o: %.cu
	@mkdir -p $(@D)
	$(if $(Q),@echo "  c++   $<")
	$(Q)$(if $(findstring ccache,$(CC)),ccache) g++ $(EMU_FLAGS) -MMD -MP -c -o $@ $<
$B/emu/%.o: %.c
	@mkdir -p $(@D)
	$(if $(Q),@echo "  cc    $<")
	$(Q)$(CC) $(CFLAGS_ALL) -isystem tests/devices/emu -DCUDA_EMU -MMD -MP -c -o $@ $<

# the bytes of these files are part of the object (.incbin)
$B/obj/serve/http/assets.o: serve/http/page.html serve/http/openapi.json

$B/libshardline.a: $(LIB_OBJ)
	@rm -f $@
	$(Q)ar rcs $@ $^

# a program of tools/ is NAME_main.c and the NAME_*.c beside it
define program
$B/bin/$(notdir $(1:_main.c=)): $B/obj/$(1:.c=.o) $(patsubst %.c,$B/obj/%.o,$(filter-out $(1),$(filter tools/%,$(wildcard $(1:_main.c=_*.c))))) $B/libshardline.a
	@mkdir -p $$(@D)
	$(if $(Q),@echo "  link  $$(notdir $$@)")
	$(Q)$(CC) $(CFLAGS_ALL) -o $$@ $$^ $$(LIBS)
endef
$(foreach m,$(MAIN_SRC),$(eval $(call program,$(m))))
# plot's name in the Debian package, where /usr/bin/plot is plotutils'
$B/bin/shardline-plot: $B/bin/plot
	$(Q)ln -sf plot $@

# The emulated objects stand before the library, so that the linker takes this device and not the library's. A static pattern rule: make would
# prefer the rule below while some of these objects are missing.
$(filter $B/tests/unit/cuda/cuda_emu_%,$(TESTS)): $B/tests/%: $B/obj/tests/%.o $B/obj/tests/test.o $(EMU_OBJ) $B/libshardline.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_ALL) -o $@ $^ $(LIBS)
$B/tests/unit/cuda/cuda_emu_block_test: $B/emu/tests/unit/cuda/cuda_emu_block.o
$B/tests/unit/cuda/cuda_emu_hopper_test: $B/emu/tests/unit/cuda/cuda_emu_hopper.o
$B/tests/%: $B/obj/tests/%.o $B/obj/tests/test.o $B/libshardline.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_ALL) -o $@ $^ $(LIBS)
# a stand-in for cuBLASLt, opened by name
$B/tests/unit/cuda/cublaslt_stub.so: tests/devices/cublaslt_stub.c tests/devices/cublaslt_stub.h kernels/cuda/lt/lt_api.h
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_ALL) -fPIC -shared -o $@ $< -lm
$B/tests/unit/cuda/cuda_lt_test $B/tests/unit/cuda/cuda_emu_rows_test: | $B/tests/unit/cuda/cublaslt_stub.so
$B/tests/bench/%: $B/obj/tests/bench/%.o $B/libshardline.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_ALL) -o $@ $^ $(LIBS)
# as tests they run the inputs in tests/fuzz/corpus; with CONFIG=fuzz they search for new ones
FUZZ_MAIN := $(if $(filter fuzz,$(CONFIG)),,$B/obj/tests/fuzz/lib/replay.o)
$B/tests/fuzz/%: $B/obj/tests/fuzz/%.o $B/obj/tests/fuzz/lib/fuzz.o $(FUZZ_MAIN) $B/libshardline.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_ALL) $(if $(FUZZ_MAIN),,-fsanitize=fuzzer) -o $@ $^ $(LIBS)
$(FUZZERS): $(FUZZ_MAIN) # named here, so that make takes the rule of fuzz targets also where this object is not built yet
$B/tests/unit/format/format_fuzz_test: $B/obj/tests/fuzz/lib/fuzz.o
# libraries for tests that programs load by name, linked to nothing: the fake device, and a stand-in for NCCL on it
FAKE_DEVICE := $B/tests/devices/fake_device.so
FAKE_NCCL   := $B/tests/devices/libnccl.so.2
FAKE_OBJ    := $(patsubst %.c,$B/pic/%.o,$(wildcard tests/devices/fake/*.c))
NCCL_OBJ    := $B/pic/tests/devices/fake_nccl.o
$B/pic/%.o: %.c
	@mkdir -p $(@D)
	$(if $(Q),@echo "  cc    $<")
	$(Q)$(CC) $(CFLAGS_ALL) -fPIC -fvisibility=hidden -MMD -MP -c -o $@ $<
$(FAKE_DEVICE): $(FAKE_OBJ)
$(FAKE_NCCL): $(NCCL_OBJ)
$(FAKE_DEVICE) $(FAKE_NCCL):
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_ALL) -shared -o $@ $^
$(TESTS): | $(FAKE_DEVICE)
tests: programs
	@$(MAKE) --no-print-directory $(JOBS) $(if $(Q),-s) $(TESTS) $(FUZZERS) $(FAKE_DEVICE) $(FAKE_NCCL) $B/tests/bench/grammar/mask_bench
fuzzers: $(FUZZERS)
benches: programs
	@$(MAKE) --no-print-directory $(JOBS) $(if $(Q),-s) $(BENCHES)
.SECONDARY:

# these install missing packages and print what they install
demo:
	@tools/setup
	@$(MAKE) --no-print-directory programs
	@tools/demo $(if $(DATA),--data '$(DATA)')
test:
	@tools/setup --tests
	@$(MAKE) --no-print-directory tests
	@tests/run --bin $B quick
test-all:
	@tools/setup --tests
	@$(MAKE) --no-print-directory tests
	@tests/run --bin $B --timeout 900 all
	@$(MAKE) --no-print-directory sanitize
sanitize:
	@$(MAKE) --no-print-directory CONFIG=sanitize LINK= tests
	@tests/run --bin build/sanitize sanitize
# FUZZ_SECONDS=N: time for each target; ONLY='NAME …': only these targets
fuzz:
	@command -v clang >/dev/null || { echo "make fuzz needs clang: apt-get install clang"; exit 1; }
	@$(MAKE) --no-print-directory CONFIG=fuzz CC='$(if $(findstring ccache,$(CC)),ccache )clang' fuzzers
	@tests/fuzz/run build/fuzz '$(ONLY)'
bench: benches
	@tests/bench/run --bin $B
bench-reshard: benches
	@tests/bench/run --bin $B reshard
	@tests/bench/model_bench.py --bin $B/bin $(BENCH)
	@tests/bench/quant_bench.py --bin $B/bin $(BENCH)
# with PEERS=DIR (programs that call them) and PEER_PYTHON: beside PyTorch, llama.cpp, transformers
bench-train: programs
	@tests/bench/train_bench.py --bin $B/bin $(BENCH)
bench-serve: benches
	@tests/bench/serve_bench.py --bin $B/bin $(BENCH)
	@tests/bench/decode/decode_bench.py --bin $B/bin --kinds bf16,fp32,b12 --start
	@tests/bench/decode/decode_bench.py --bin $B/bin --kinds int8,mxfp4,int4 --tests 1,8
	@tests/bench/decode/decode_bench.py --bin $B/bin --kinds int8-int,int4-int --tests 8,32,prefill
# with PEER_PYTHON, a python that has torch and deepspeed: beside zero_to_fp32, ds_to_universal, dcp_to_torch_save
bench-foreign: programs
	@$(or $(PEER_PYTHON),python3) tests/bench/foreign_bench.py --bin $B/bin $(BENCH)
check: check-layers style-check check-names
check-layers style-check check-names:
	@tools/$@
tidy:
	@tools/tidy all

install: programs
	@tools/package install $B/bin '$(DESTDIR)' '$(PREFIX)'
# a tarball of the last commit; a Debian package of this build
dist:
	@tools/package dist
deb:
	@tools/setup --deb --check >/dev/null || { echo "make: or let tools/setup --deb run it" >&2; exit 1; }
	@$(MAKE) --no-print-directory programs
	@tools/package deb $B/bin

clean:
	rm -rf build

help:
	@echo "make                the programs, in build/bin/"
	@echo "make demo           train on 4 ranks, reshard, serve, complete (a few minutes); DATA=FILE: another text"
	@echo "make test           the quick tests, less than 15 minutes; FIXTURES=DIR: also those against reference files"
	@echo "make test-all       every test, then the sanitizers; clang-tidy on all files"
	@echo "make bench          speed of products, memory, exact against fast"
	@echo "make bench-train    training speed, MFU, memory a rank; PEERS=DIR PEER_PYTHON=PYTHON: beside PyTorch; BENCH='110m bf16': some rows"
	@echo "make bench-serve    serving speed; BENCH='--sizes 110m,1b': other models"
	@echo "make bench-foreign  reshard of ZeRO-3 and DCP folders against the frameworks' converters; PEER_PYTHON=PYTHON; needs 8 GB in /tmp"
	@echo "make bench-reshard  reshard against cp -r of the same bytes; PEER_PYTHON=PYTHON LLAMA_CPP=DIR: other converters; needs 13 GB in /tmp"
	@echo "make sanitize       unit tests under ASan and UBSan"
	@echo "make fuzz           searches for inputs that break a reader, a minute a target (clang); FUZZ_SECONDS=N ONLY='pickle zip'"
	@echo "make check          shape of the source: check-layers, style-check (clang-format), check-names"
	@echo "make tidy           clang-tidy on all files"
	@echo "make install        programs, man pages, completion for bash, zsh, fish; PREFIX=$(PREFIX) DESTDIR="
	@echo "make dist           build/shardline-VERSION.tar.gz of the last commit"
	@echo "make deb            build/shardline_VERSION_ARCH.deb of this build"
	@echo "CONFIG=release|sanitize|altered   CFLAGS=…   V=1: show the commands   CUDA=: without the CUDA device   CUDA_ARCH='90': only that GPU"

# what each object read when it was compiled
-include $(shell find $B -name '*.d' 2>/dev/null)
