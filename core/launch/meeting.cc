#include "tutti/core/launch/meeting.h"

#include <fmt/format.h>

#include "tutti/backends/network/network_interface.h"
#include "tutti/base/error.h"
#include "tutti/base/temporary_file.h"
#include "tutti/base/text.h"

namespace tutti {

std::string encode_meeting_place(const MeetingPlace& place) {
  return place.store + "," + place.secret;
}

MeetingPlace decode_meeting_place(const std::string& text) {
  const auto parts = split_text(text, ',');
  if (parts.size() != 2 || !parts[0].starts_with("tcp://"))
    throw Error(ErrorCode::corrupt_data,
                "what the launcher passed on from rank 0 is not an address");
  return {parts[0], parts[1]};
}

std::string random_secret() { return random_hex(32); }

std::string store_url(const std::string& host, int port) {
  return host.find(':') == host.npos ? fmt::format("tcp://{}:{}", host, port)
                                     : fmt::format("tcp://[{}]:{}", host, port);
}

StoreAddress parse_store_url(const std::string& url) {
  constexpr std::string_view kScheme = "tcp://";
  const auto colon = url.rfind(':');
  const auto port =
      colon == url.npos ? std::nullopt : parse_integer(url.substr(colon + 1), 1, 65535);
  if (!url.starts_with(kScheme) || colon <= kScheme.size() || !port)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("TUTTI_STORE={} is not the address of a store (expected "
                            "tcp://host:port or file:///folder)",
                            url));
  std::string host = url.substr(kScheme.size(), colon - kScheme.size());
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  return {host, static_cast<int>(*port)};
}

std::string serving_address(const std::string& network_interface, bool one_host) {
  Context context;
  context.network_interface = network_interface;
  context.store = make_memory_store();
  context.places.assign(2, Place{"here", "", 0, 0});
  if (!one_host) context.places.back().host = "elsewhere";
  return choose_address(context, interface_addresses()).to_string();
}

}  // namespace tutti
