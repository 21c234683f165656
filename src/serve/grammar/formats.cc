// SPDX-License-Identifier: Apache-2.0
#include "serve/grammar/formats.h"

namespace hocket::serve::grammar {
namespace {

// Dates exist: months have their days, and February 29 only leap years.
#define HOCKET_YEAR "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
#define HOCKET_LEAP_YEAR                                         \
  "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468]" \
  "[048]|[13579][26])00)"
#define HOCKET_DATE                                                                          \
  "(?:" HOCKET_YEAR                                                                          \
  "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|" \
  "02-(?:0[1-9]|1[0-9]|2[0-8]))|" HOCKET_LEAP_YEAR "-02-29)"
#define HOCKET_CLOCK "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.][0-9]{1,6})?"
#define HOCKET_ZONE "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define HOCKET_BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define HOCKET_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"

constexpr StringFormat kFormats[] = {
    {"date", "^" HOCKET_DATE "$", "years 0001 to 9999, days that exist"},
    {"time", "^" HOCKET_CLOCK HOCKET_ZONE "$", "with a zone; up to 6 digits of a second"},
    {"date-time", "^" HOCKET_DATE "T" HOCKET_CLOCK HOCKET_ZONE "$", "date, T, time"},
    {"duration",
     "^P(?:[0-9]{1,9}W|(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M"
     "(?:[0-9]{1,9}D)?|[0-9]{1,9}D)(?:T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|"
     "[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))?|T(?:[0-9]{1,9}H(?:[0-9]{1,9}M"
     "(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))$",
     "as RFC 3339 has it, without gaps between units"},
    {"uuid", "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$",
     "five groups of hexadecimal digits"},
    {"email",
     "^[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:[.][A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@"
     "(?:" HOCKET_LABEL "[.]){1,8}[A-Za-z]{2,24}$",
     "ASCII, nothing quoted, a domain with a point"},
    {"hostname", "^" HOCKET_LABEL "(?:[.]" HOCKET_LABEL "){0,3}$",
     "ASCII, at most 4 labels: no name is too long"},
    {"ipv4", "^" HOCKET_BYTE "(?:[.]" HOCKET_BYTE "){3}$", "four decimal bytes"},
    {"ipv6", "^(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}$", "all eight groups, nothing left out"},
    {"uri",
     "^https?://" HOCKET_LABEL "(?:[.]" HOCKET_LABEL
     ")*(?::[0-9]{1,4})?(?:/[A-Za-z0-9._~!$&'()*+,;=:@-]*)*"
     "(?:[?][A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?(?:#[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?$",
     "http and https"},
};

#undef HOCKET_YEAR
#undef HOCKET_LEAP_YEAR
#undef HOCKET_DATE
#undef HOCKET_CLOCK
#undef HOCKET_ZONE
#undef HOCKET_BYTE
#undef HOCKET_LABEL

}  // namespace

std::span<const StringFormat> string_formats() { return kFormats; }

const StringFormat* find_format(std::string_view name) {
  for (const StringFormat& format : kFormats) {
    if (format.name == name) return &format;
  }
  return nullptr;
}

}  // namespace hocket::serve::grammar
