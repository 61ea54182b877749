/* version.h - what /version and --version say. */
#ifndef SHARDLINE_SERVE_VERSION_H
#define SHARDLINE_SERVE_VERSION_H

#define SERVE_VERSION "0.1"

#endif
