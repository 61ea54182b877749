/* version.h - the release, as --version and pserve's /version say it. */
#ifndef SHARDLINE_BASE_VERSION_H
#define SHARDLINE_BASE_VERSION_H

#define SHARDLINE_VERSION "0.1"

#endif
