// The answers of a launcher's PMI-1 server. The first byte is the rank that asks.

#include <sys/socket.h>

#include "tests/fuzz/harness.h"
#include "tutti/base/descriptor.h"
#include "tutti/core/launch/exchange.h"
#include "tutti/core/launch/meeting.h"

namespace tutti::fuzz {
namespace {

bool parse_pmi(std::string_view input) {
  const auto rank = static_cast<int>(take_number_of(input, 1) % 2);
  int ends[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "no socket pair");
  const Descriptor own(ends[0]), server(ends[1]);
  const auto sent = ::send(server.get(), input.data(), input.size(), MSG_DONTWAIT);
  require(sent == static_cast<ssize_t>(input.size()), "the answers do not fit into a socket");
  ::shutdown(server.get(), SHUT_WR);
  const auto shared = share_over_pmi(own.get(), rank, "tcp://h:1,secret", Deadline::after(5));
  decode_meeting_place(shared);
  return true;
}

std::vector<std::string> seeds_of_pmi() {
  const std::string begin =
      "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\ncmd=my_kvsname kvsname=kvs_7_0\n";
  const std::string end = "cmd=barrier_out\ncmd=get_result rc=0 msg=success value=" +
                          encode_meeting_place({"tcp://10.0.0.3:4711", "secret"}) +
                          "\ncmd=finalize_ack\n";
  return {std::string(1, '\0') + begin + "cmd=put_result rc=0 msg=success\n" + end,
          std::string(1, '\1') + begin + end};
}

const Registered registered_pmi({.name = "pmi", .parse = parse_pmi, .seeds = seeds_of_pmi});

}  // namespace
}  // namespace tutti::fuzz
