/* version.h - the release that --version and pserve's /version report. */
#ifndef SHARDLINE_BASE_VERSION_H
#define SHARDLINE_BASE_VERSION_H

#define SHARDLINE_VERSION "0.1"

#endif
