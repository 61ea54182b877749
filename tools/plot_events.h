/* plot_events.h - a run's log as an event file of TensorBoard. */
#ifndef SHARDLINE_TOOLS_PLOT_EVENTS_H
#define SHARDLINE_TOOLS_PLOT_EVENTS_H

#include "base/err.h"

/* Writes DIR/RUN/events.out.tfevents.SECONDS.shardline, where RUN is the log's name without its ending and
 * SECONDS the time of its first line: a scalar for every number of a line with a step, at the time of that
 * line. Numbers of events but eval are called EVENT/KEY, items of a list KEY/N. The file of an earlier call
 * is replaced. path: the log. */
int plot_events_write(const char *dir, const char *path, struct err *e);

#endif
