/* metrics.h - what a server counts, printed as Prometheus text (version 0.0.4), under vLLM's names where the
 * meaning is the same.
 *
 * Written by the engine's thread and the HTTP threads, read by the HTTP threads: every number is atomic on
 * its own, no set of them is. A NULL struct metrics is fine everywhere: nothing is counted then. */
#ifndef SHARDLINE_SERVE_METRICS_H
#define SHARDLINE_SERVE_METRICS_H

#include <stdatomic.h>
#include <stdint.h>
#include "serve/adapters/adapter_limits.h"
#include "serve/api/json_out.h"

/* enum, name, further label, help; rows of the same name are adjacent */
#define METRIC_GAUGES(X) \
    X(RUNNING, "vllm:num_requests_running", "", "answers that are computed in the present step") \
    X(WAITING, "vllm:num_requests_waiting", "", "answers that wait for a place in the batch or for pages") \
    X(KV_USAGE_PPM, "vllm:kv_cache_usage_perc", "", \
      "part of the key-value pages that running answers hold, 0 to 1") \
    X(KV_PAGES, "shardline:kv_pages", "", "key-value pages in the pool") \
    X(KV_CACHED, "shardline:kv_pages_cached", "", \
      "pages that no answer holds, kept for prompts with the same beginning") \
    X(WEIGHTS_KEPT, "shardline:weights_kept_bytes", "", \
      "memory of the weights before these, which the next version will be read into (rank 0's)")
#define METRIC_POSITION(X, i, help) \
    X(ACCEPTED_##i, "vllm:spec_decode_num_accepted_tokens_per_pos_total", ",position=\"" #i "\"", help)
/* clang-format off */
/* DRAFT_MOST of them */
#define METRIC_POSITIONS(X) \
    METRIC_POSITION(X, 0, "the same by how many guesses came before it") \
    METRIC_POSITION(X, 1, "") METRIC_POSITION(X, 2, "") METRIC_POSITION(X, 3, "") \
    METRIC_POSITION(X, 4, "") METRIC_POSITION(X, 5, "") METRIC_POSITION(X, 6, "") \
    METRIC_POSITION(X, 7, "") METRIC_POSITION(X, 8, "") METRIC_POSITION(X, 9, "") \
    METRIC_POSITION(X, 10, "") METRIC_POSITION(X, 11, "") METRIC_POSITION(X, 12, "") \
    METRIC_POSITION(X, 13, "") METRIC_POSITION(X, 14, "") METRIC_POSITION(X, 15, "")
/* clang-format on */
#define METRIC_COUNTERS(X) \
    X(PROMPT_TOKENS, "vllm:prompt_tokens_total", "", \
      "tokens of prompts that were computed or found in the prefix cache") \
    X(GENERATED, "vllm:generation_tokens_total", "", "tokens generated") \
    X(PREEMPTED, "vllm:num_preemptions_total", "", \
      "times an answer was preempted: its pages were taken, it is computed again") \
    X(PREFIX_LOOKED_UP, "vllm:prefix_cache_queries_total", "", \
      "prompt tokens looked up in the prefix cache") \
    X(PREFIX_HIT, "vllm:prefix_cache_hits_total", "", "prompt tokens found there") \
    X(DISK_LOOKED_UP, "vllm:external_prefix_cache_queries_total", "", \
      "of these not found there: tokens looked up in the folder of --kv-disk") \
    X(DISK_HIT, "vllm:external_prefix_cache_hits_total", "", "tokens found and read there") \
    X(DISK_DAMAGED, "shardline:kv_disk_damaged_total", "", \
      "records of the folder that were damaged or cut (rank 0's), and computed again") \
    X(DISK_READ, "shardline:kv_disk_read_bytes_total", "", "bytes read from it by rank 0") \
    X(DISK_WRITTEN, "shardline:kv_disk_written_bytes_total", "", "bytes written to it by rank 0") \
    X(ENDED_STOP, "vllm:request_success_total", ",finished_reason=\"stop\"", \
      "answers that are complete, by reason") \
    X(ENDED_LENGTH, "vllm:request_success_total", ",finished_reason=\"length\"", "") \
    X(ENDED_ABORT, "vllm:request_success_total", ",finished_reason=\"abort\"", "") \
    X(REJECTED, "vllm:admission_rejections_total", "", \
      "requests refused because the server or a key had too many") \
    X(CONNECTIONS_CUT, "shardline:connections_cut_total", "", \
      "connections closed at a limit of their number, or after --receive-timeout") \
    X(TIMED_OUT, "shardline:request_timeouts_total", "", "requests that took longer than --request-timeout") \
    X(RELOADS, "shardline:reloads_total", "", "times the weights were swapped") \
    X(CARRIED, "shardline:swap_carried_rows_total", "", \
      "rows of running answers that new weights computed before a swap (mode keep)") \
    X(RECOMPUTED, "shardline:swap_recomputed_rows_total", "", \
      "rows of running answers computed again behind a swap") \
    X(RELOAD_RECEIVED, "shardline:reload_bytes_total", ",way=\"network\"", \
      "bytes of weights that were read for swaps, by all ranks") \
    X(RELOAD_HERE, "shardline:reload_bytes_total", ",way=\"same_machine\"", "") \
    X(DRAFTS, "vllm:spec_decode_num_drafts_total", "", \
      "times tokens were guessed ahead of an answer, and checked (--speculate)") \
    X(DRAFT_TOKENS, "vllm:spec_decode_num_draft_tokens_total", "", "tokens guessed and checked") \
    X(ACCEPTED, "vllm:spec_decode_num_accepted_tokens_total", "", "of these, tokens that were right") \
    X(FORCED, "shardline:spec_decode_num_forced_tokens_total", "", \
      "of the tokens checked, those that a grammar forces") \
    METRIC_POSITIONS(X) \
    X(STEPS, "shardline:steps_total", "", "steps of the model") \
    X(ROWS, "shardline:rows_total", "", "rows computed in them")
#define METRIC_HISTS(X) \
    X(TTFT, "vllm:time_to_first_token_seconds", SECONDS, "from the request to its first token") \
    X(ITL, "vllm:inter_token_latency_seconds", SECONDS, "between two tokens of an answer") \
    X(E2E, "vllm:e2e_request_latency_seconds", SECONDS, "from the request to its last token") \
    X(QUEUE, "vllm:request_queue_time_seconds", SECONDS, "from the request to its first step") \
    X(PREFILL, "vllm:request_prefill_time_seconds", SECONDS, "from the first step to the first token") \
    X(DECODE, "vllm:request_decode_time_seconds", SECONDS, "from the first token to the last") \
    X(INFERENCE, "vllm:request_inference_time_seconds", SECONDS, "from the first step to the last token") \
    X(TPOT, "vllm:request_time_per_output_token_seconds", SECONDS, \
      "the time from the first token to the last, for each token after the first") \
    X(STEP_ROWS, "vllm:iteration_tokens_total", TOKENS, "rows of a step") \
    X(PROMPT_LEN, "vllm:request_prompt_tokens", TOKENS, "tokens of a prompt") \
    X(ANSWER_LEN, "vllm:request_generation_tokens", TOKENS, "tokens of an answer") \
    X(MAX_ANSWER_LEN, "vllm:request_max_num_generation_tokens", TOKENS, \
      "tokens of the longest answer to a prompt") \
    X(PARAM_N, "vllm:request_params_n", TOKENS, "n of a request, for each of its prompts") \
    X(PARAM_MAX_TOKENS, "vllm:request_params_max_tokens", TOKENS, \
      "max_tokens of an answer; where none was given, the default")

#define X(name, ...) GAUGE_##name,
enum gauge { METRIC_GAUGES(X) GAUGE_COUNT };
#undef X
#define X(name, ...) COUNT_##name,
enum counter { METRIC_COUNTERS(X) COUNT_COUNT };
#undef X
#define X(name, ...) HIST_##name,
enum hist { METRIC_HISTS(X) HIST_COUNT };
#undef X

/* Adapters of answers that are computed, and of those that wait. */
enum { METRIC_ADAPTERS_RUNNING, METRIC_ADAPTERS_WAITING, METRIC_ADAPTERS };

#define HIST_BUCKETS 24
struct adapter_names;
struct metrics {
    _Atomic int64_t gauge[GAUGE_COUNT], counter[COUNT_COUNT];
    struct {
        _Atomic int64_t bucket[HIST_BUCKETS], sum_micro;
    } hist[HIST_COUNT];
    _Atomic int64_t adapters[METRIC_ADAPTERS][ADAPTERS_MAX / 64]; /* bits of slots, set by the engine */
};
/* Set a gauge, add n to a counter, put a value (seconds or tokens) into a histogram. Any thread. */
void metric_set(struct metrics *m, enum gauge g, int64_t value);
void metric_add(struct metrics *m, enum counter c, int64_t n);
void metric_observe(struct metrics *m, enum hist h, double value);
/* Overwrites all of *to with the bytes of a struct metrics of another process. Any thread. */
void metrics_copy(struct metrics *to, const void *from);
/* Constants of the server, for labels. */
struct metrics_labels {
    const char *model;       /* label model_name of all metrics but the process's */
    const char *cache_dtype; /* of keys and values; NULL: not known yet */
    int page_tokens;         /* positions in a key-value page */
    int prefix_cache;
    int drafts;                     /* tokens ahead; 0: none are guessed, and nothing is said of them */
    struct adapter_names *adapters; /* NULL, or none was ever there: nothing is said of them */
};
/* Appends all metrics of n engines to o, told apart by the label engine. Any thread. */
void metrics_write(struct json_out *o, const struct metrics *const *m, int n, const struct metrics_labels *l);
/* Appends the two lines that stand before a metric's values. type: "gauge", "counter", "histogram". */
void metrics_write_head(struct json_out *o, const char *name, const char *type, const char *help);
/* Appends the metrics of this process, under the names that Prometheus' own client libraries use: processor
 * time, memory, open files, start. Those that the kernel does not tell are left out. Any thread. */
void metrics_write_process(struct json_out *o);

#endif
