/* adapter_limits.h - limits of adapters (LoRA). */
#ifndef SHARDLINE_SERVE_ADAPTERS_ADAPTER_LIMITS_H
#define SHARDLINE_SERVE_ADAPTERS_ADAPTER_LIMITS_H

#define ADAPTERS_MAX 1024    /* slots; a multiple of 64 */
#define ADAPTER_NAME_MAX 255 /* bytes */
/* "DIGEST-SCALES": its weights_digest, and 16 hex digits of a hash of its ranks and scales */
#define ADAPTER_DIGEST_MAX 52

#endif
