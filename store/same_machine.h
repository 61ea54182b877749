/* same_machine.h - a file that a server of this machine holds open, opened here too, so that its bytes need
 * not pass through a connection.
 *
 *     X-Shardline-File: PID FD DEVICE INODE        in the answer to a reader on this machine
 *
 * names a descriptor of the server's. A reader that reached the server by a loopback address, and has its
 * user, opens the descriptor through /proc, whatever folder or memory the file lies in. It compares device,
 * inode and length: what is not the very file is not used. */
#ifndef SHARDLINE_STORE_SAME_MACHINE_H
#define SHARDLINE_STORE_SAME_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#define SAME_MACHINE_HEADER "X-Shardline-File"
#define SAME_MACHINE_BYTES 96 /* of its value, with the NUL */

/* The value for a descriptor of this process, which stays open while readers may use it. 0: it is no regular
 * file, and out is "". Any thread. */
int same_machine_name(int fd, char out[SAME_MACHINE_BYTES]);
/* Opens what `name` says, for reading. bytes: the length that it must have. -1: it is not there, another
 * user's, or another file. The caller closes it. Any thread. */
int same_machine_open(const char *name, int64_t bytes);

#endif
