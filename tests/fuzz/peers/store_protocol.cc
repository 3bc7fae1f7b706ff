// The frames of the TCP store: requests as the server reads them, with the table that answers them,
// and replies as a client reads them.

#include "tests/fuzz/harness.h"
#include "tutti/backends/store/tcp_store_protocol.h"
#include "tutti/backends/store/tcp_store_table.h"
#include "tutti/base/error.h"

namespace tutti::fuzz {
namespace {

// Returns the next frame of a stream without its length, or nothing if it is incomplete.
std::optional<std::string_view> take_store_frame(std::string_view& stream) {
  if (stream.size() < kStoreFrameHeader) return {};
  const size_t length = decode_frame_length(stream);
  if (stream.size() - kStoreFrameHeader < length) return {};
  const auto frame = stream.substr(kStoreFrameHeader, length);
  stream.remove_prefix(kStoreFrameHeader + length);
  return frame;
}

bool serve(std::string_view stream) {
  asio::io_context io(1);
  StoreTable table(io);
  const int client = 0;
  bool served = false;
  while (const auto frame = take_store_frame(stream)) {
    const auto request = decode_request(*frame);
    require(encode(request).substr(kStoreFrameHeader) == *frame, "a request does not come back");
    table.handle(&client, request, [](const StoreReply& reply) {
      const auto text = encode(reply);
      require(
          decode_frame_length(text) == text.size() - kStoreFrameHeader &&
              decode_reply(std::string_view(text).substr(kStoreFrameHeader)).value == reply.value,
          "a client cannot read the server's reply");
    });
    served = true;
  }
  table.forget(&client);
  return served;
}

bool parse_store_protocol(std::string_view input) {
  if (take_number_of(input, 1) % 2 == 0) return serve(input);
  bool read = false;
  while (const auto frame = take_store_frame(input)) {
    require(encode(decode_reply(*frame)).substr(kStoreFrameHeader) == *frame,
            "a reply does not come back");
    read = true;
  }
  return read;
}

std::vector<std::string> seeds_of_store_protocol() {
  std::string requests(1, '\0'), replies(1, '\1');
  const StoreRequest asked[] = {
      {.id = 1, .op = StoreOp::set, .key = "a", .value = "7"},
      {.id = 2, .op = StoreOp::add, .argument = 5, .key = "a", .value = ""},
      {.id = 3, .op = StoreOp::raise, .argument = ~uint64_t{0}, .key = "a", .value = ""},
      {.id = 4, .op = StoreOp::get, .argument = 10, .key = "b", .value = ""},
      {.id = 5, .op = StoreOp::set_once, .key = "b", .value = "text"},
      {.id = 6, .op = StoreOp::try_get, .key = "c", .value = ""},
      {.id = 7, .op = StoreOp::erase, .key = "b", .value = ""},
      {.id = 8, .op = StoreOp::erase_all, .key = "a", .value = ""}};
  std::vector<std::string> seeds;
  for (const auto& request : asked) {
    requests += encode(request);
    seeds.push_back(std::string(1, '\0') + encode(request));
  }
  for (const auto status : {StoreStatus::ok, StoreStatus::absent, StoreStatus::not_a_number})
    replies += encode(StoreReply{.id = 9, .status = status, .value = "value"});
  seeds.push_back(requests);
  seeds.push_back(replies);
  return seeds;
}

const Registered registered_store_protocol({.name = "store_protocol",
                                            .parse = parse_store_protocol,
                                            .seeds = seeds_of_store_protocol});

}  // namespace
}  // namespace tutti::fuzz
