#pragma once

#include <string>

namespace tutti {

/// The address at which the ranks of a job meet, and their secret. The rank that serves the store
/// sends them to the other ranks.
struct MeetingPlace {
  std::string store;  // "tcp://10.0.0.3:4711"
  std::string secret;
};

/// Encodes the address and the secret as one text without blanks.
std::string encode_meeting_place(const MeetingPlace& place);
/// Decodes a text from encode_meeting_place(). Throws Error(corrupt_data).
MeetingPlace decode_meeting_place(const std::string& text);

/// Returns 32 random bytes in hexadecimal.
std::string random_secret();

struct StoreAddress {
  std::string host;
  int port = 0;
};
/// Returns a URL of the form "tcp://host:port" or "tcp://[::1]:port".
std::string store_url(const std::string& host, int port);
/// Parses a URL in one of the forms of store_url(). Throws Error(invalid_argument) for other text.
StoreAddress parse_store_url(const std::string& url);

/// Returns the address for serving a store if the program has not chosen one. If
/// `network_interface` (a name or an address, as in TUTTI_INTERFACE) is given, the result is the
/// address of that interface. Otherwise it is loopback if all ranks are on this host. Else it is
/// the address that this host uses to reach other networks. Throws Error(unavailable).
std::string serving_address(const std::string& network_interface, bool one_host);

}  // namespace tutti
