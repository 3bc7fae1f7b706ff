#pragma once

#include <string>

namespace tutti {

/// The address at which the ranks of a job meet, and their secret, as announced by the rank that
/// serves the store.
struct MeetingPlace {
  std::string store;  // "tcp://10.0.0.3:4711"
  std::string secret;
};

/// Returns it as one word, for channels that carry no blanks.
std::string encode_meeting_place(const MeetingPlace& place);
/// Throws Error(corrupt_data).
MeetingPlace decode_meeting_place(const std::string& text);

/// Returns 32 random bytes in hexadecimal.
std::string random_secret();

struct StoreAddress {
  std::string host;
  int port = 0;
};
/// Returns "tcp://host:port" or "tcp://[::1]:port".
std::string store_url(const std::string& host, int port);
/// Parses such a URL. Throws Error(invalid_argument) for other text.
StoreAddress parse_store_url(const std::string& url);

/// Returns the address on which to serve a store if any may be chosen. This is the one of
/// `network_interface` (a name or an address, as in TUTTI_INTERFACE), else loopback if all ranks
/// are on this host, else the one that reaches the world. Throws Error(unavailable).
std::string serving_address(const std::string& network_interface, bool one_host);

}  // namespace tutti
