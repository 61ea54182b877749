/* s3_xml.h - private to the room: what is needed of XML to read the answers of S3: elements by name, without
 * attributes of interest, and their text. */
#ifndef SHARDLINE_STORE_S3_XML_H
#define SHARDLINE_STORE_S3_XML_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of an answer; borrowed. */
struct xml_span {
    const char *p;
    size_t n;
};

/* Finds the first element of that name in *in. 1: *out is what it contains, and *in continues behind it.
 * 0: there is none, or it does not end. An element with a child of its own name is not expected. */
int xml_next(struct xml_span *in, const char *name, struct xml_span *out);
/* Fills out with the text of the first element of that name: &amp;, &lt;, &gt;, &quot;, &apos; and numbers
 * decoded. 1; 0 and "": there is none, or its text has `room` bytes or more, or a zero byte. */
int xml_text(struct xml_span in, const char *name, char *out, size_t room);
/* The text of that element as a number from 0 on; -1: there is none. */
int64_t xml_number(struct xml_span in, const char *name);

#endif
