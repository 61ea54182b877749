/* publisher_names.h - private to publisher.c and publisher_serve.c: names of versions in memory. */
#ifndef SHARDLINE_TRAIN_CHECKPOINT_PUBLISHER_NAMES_H
#define SHARDLINE_TRAIN_CHECKPOINT_PUBLISHER_NAMES_H

#define PUBLISH_SETS "live-" /* versions are live-step-N */

#endif
