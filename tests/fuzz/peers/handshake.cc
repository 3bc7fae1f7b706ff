// The handshake, which reads bytes of strangers. The inputs are a whole conversation with a peer
// that knows the secret, some bytes of which are changed on the way, and arbitrary bytes.

#include "tutti/backends/handshake/handshake.h"

#include <algorithm>

#include "tests/fuzz/harness.h"
#include "tutti/base/error.h"

namespace tutti::fuzz {
namespace {

constexpr unsigned kIsInitiator = 1, kIsRaw = 2;

// Changes the peer's bytes as the input says: each pair holds an offset and the bits that are XORed
// to the byte there.
struct Alterations {
  std::string_view pairs;
  size_t place = 0;      // offset of the next byte
  bool altered = false;  // true once a byte has been changed

  std::string apply(std::string bytes) {
    for (auto rest = pairs; rest.size() >= 2;) {
      const auto at = take_number_of(rest, 1);
      const auto bits = take_number_of(rest, 1);
      if (at < place || at >= place + bytes.size() || bits == 0) continue;
      bytes[at - place] = static_cast<char>(bytes[at - place] ^ static_cast<char>(bits));
    }
    return bytes;
  }
};

bool converse(HandshakeRole role, std::string_view input) {
  const auto opposite =
      role == HandshakeRole::initiator ? HandshakeRole::acceptor : HandshakeRole::initiator;
  const auto terms = [](int rank, int peer) {
    return HandshakeTerms{
        .secret = "secret", .scope = "a", .rank = rank, .peer = peer, .peer_name = "the peer"};
  };
  Handshake own(role, terms(0, 1)), peer(opposite, terms(1, 0));
  Alterations alterations{input};
  std::string to_own, to_peer;
  for (bool moved = true; moved;) {
    moved = false;
    to_peer += own.output();
    own.sent(own.output().size());
    const std::string said(peer.output());
    peer.sent(said.size());
    const auto heard = alterations.apply(said);
    alterations.altered |= heard != said;
    alterations.place += said.size();
    to_own += heard;
    if (own.wanted() > 0 && to_own.size() >= own.wanted()) {
      const auto next = to_own.substr(0, own.wanted());
      to_own.erase(0, next.size());
      own.received(next);
      moved = true;
    }
    if (peer.wanted() > 0 && to_peer.size() >= peer.wanted()) {
      const auto next = to_peer.substr(0, peer.wanted());
      to_peer.erase(0, next.size());
      try {
        peer.received(next);
      } catch (const Error&) {
        // The peer may refuse the bytes. The answer to its refusal is read next.
      }
      moved = true;
    }
    require(own.wanted() < 256, "the handshake reads more than a session has room for");
  }
  require(!own.done() || !alterations.altered, "an altered handshake succeeded");
  return own.done();
}

bool parse_handshake(std::string_view input) {
  const auto how = take_number_of(input, 1);
  const auto role = (how & kIsInitiator) != 0 ? HandshakeRole::initiator : HandshakeRole::acceptor;
  if ((how & kIsRaw) == 0) return converse(role, input);
  Handshake own(role, {.secret = "secret", .scope = "a", .rank = 0, .peer = 1, .peer_name = "it"});
  own.sent(own.output().size());
  while (own.wanted() > 0 && input.size() >= own.wanted()) {
    const auto next = input.substr(0, own.wanted());
    input.remove_prefix(next.size());
    own.received(next);
  }
  require(!own.done(), "a stranger proved that it knows the secret");
  return false;
}

std::vector<std::string> seeds_of_handshake() {
  // These change nothing: no pair, a pair beyond the end, and a pair without bits.
  const std::string beyond("\xff\x01", 2), without("\x10\x00", 2);
  std::vector<std::string> seeds;
  for (const char role : {'\0', '\1'})
    for (const auto& pairs : {std::string(), beyond, without + beyond})
      seeds.push_back(role + pairs);
  return seeds;
}

const Registered registered_handshake({.name = "handshake",
                                       .parse = parse_handshake,
                                       .seeds = seeds_of_handshake});

}  // namespace
}  // namespace tutti::fuzz
