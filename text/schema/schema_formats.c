/* schema_formats.c - formats of strings as regexes: RFC 3339, 3986, 4122, 5321, 1123, ISO 8601. Narrower
 * than their definitions where libraries disagree: no leap second, no year 0, no quoted local part of an
 * address. */
#include <string.h>
#include "text/schema/schema.h"

#define YEAR "(?:000[1-9]|00[1-9]\\d|0[1-9]\\d\\d|[1-9]\\d{3})"
#define LEAP_YEAR "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define DATE \
    "(?:" YEAR "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|" \
    "02-(?:0[1-9]|1\\d|2[0-8]))|" LEAP_YEAR "-02-29)"
#define TIME "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define SPAN "T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S)"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HOST LABEL "(?:\\." LABEL ")*"
#define ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4 OCTET "\\." OCTET "\\." OCTET "\\." OCTET
#define H16 "[0-9A-Fa-f]{1,4}"
#define LS32 "(?:" H16 ":" H16 "|" IPV4 ")"
#define IPV6 \
    "(?:(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32 "|(?:(?:" H16 \
    ":)?" H16 ")?::(?:" H16 ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16 ")?::(?:" H16 ":){2}" LS32 \
    "|(?:(?:" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|(?:(?:" H16 ":){0,4}" H16 ")?::" LS32 "|(?:(?:" H16 \
    ":){0,5}" H16 ")?::" H16 "|(?:(?:" H16 ":){0,6}" H16 ")?::)"
#define PERCENT "%[0-9A-Fa-f]{2}"
#define PCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|" PERCENT ")"
#define PCHAR_FIRST "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|" PERCENT ")"
#define AUTHORITY \
    "(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|" PERCENT ")*@)?(?:\\[" IPV6 \
    "\\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|" PERCENT ")*)(?::\\d*)?"
#define PATHS "//" AUTHORITY "(?:/" PCHAR "*)*|/(?:" PCHAR "+(?:/" PCHAR "*)*)?|"
#define QUERY "(?:\\?(?:[/?]|" PCHAR ")*)?(?:#(?:[/?]|" PCHAR ")*)?"
#define URI "[A-Za-z][A-Za-z0-9+.-]*:(?:" PATHS PCHAR "+(?:/" PCHAR "*)*|)" QUERY
#define POINTER "(?:/(?:[^~/]|~[01])*)*"

static const struct format formats[] = {
    { "date-time", DATE "T" TIME, NULL, 0 },
    { "date", DATE, NULL, 0 },
    { "time", TIME, NULL, 0 },
    { "duration", "P(?:\\d+W|(?:\\d+D|\\d+M(?:\\d+D)?|\\d+Y(?:\\d+M(?:\\d+D)?)?)(?:" SPAN ")?|" SPAN ")",
      NULL, 0 },
    { "email", ATOM "(?:\\." ATOM ")*@" HOST, NULL, 0 },
    { "hostname", HOST, "(?:^|\\.)..--", 253 },
    { "ipv4", IPV4, NULL, 0 },
    { "ipv6", IPV6, NULL, 0 },
    { "uuid", "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}", NULL, 0 },
    { "uri", URI, NULL, 0 },
    { "uri-reference", URI "|(?:" PATHS PCHAR_FIRST "+(?:/" PCHAR "*)*|)" QUERY, NULL, 0 },
    { "json-pointer", POINTER, NULL, 0 },
    { "relative-json-pointer", "(?:0|[1-9]\\d*)(?:#|" POINTER ")", NULL, 0 },
};
static const char *const not_honoured[] = { "idn-email",     "idn-hostname", "iri",
                                            "iri-reference", "uri-template", "regex" };

const struct format *schema_format(const char *name, int *refused)
{
    *refused = 0;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (!strcmp(formats[i].name, name))
            return &formats[i];
    for (size_t i = 0; i < sizeof not_honoured / sizeof *not_honoured; i++)
        *refused |= !strcmp(not_honoured[i], name);
    return NULL;
}
