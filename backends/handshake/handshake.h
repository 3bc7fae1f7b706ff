#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tutti {

enum class HandshakeRole : uint8_t { initiator = 1, acceptor = 2 };

/// Version of the protocols that our processes use over sockets.
inline constexpr uint32_t kWireVersion = 2;

/// Seconds after which a connection that has not proved itself is dropped.
inline constexpr double kHandshakeSeconds = 5;

/// The parameters of one side of a handshake.
struct HandshakeTerms {
  // the job's secret; if empty, nothing is proved and only stray connections are rejected
  std::string secret;
  std::string scope;      // purpose of the connection; equal on both sides
  int rank = -1;          // this rank; -1: none (the store and its clients)
  int peer = -1;          // the rank expected at the other end; -1: the acceptor takes any rank
  std::string peer_name;  // names the peer in errors: "rank 3 (10.0.0.3:4711)"
  uint32_t version = kWireVersion;
};

/// A handshake in which the two ends of a connection prove to each other that they know the job's
/// secret. This class is the pure protocol. Its owner moves the bytes.
///
/// Both ends send a hello first, without waiting: version, role, ranks, scope and nonce. Then the
/// initiator proves itself. Only after that the acceptor proves itself. A proof is an HMAC-SHA-256
/// under the secret over the prover's role, both hellos and the scope. Fresh nonces defeat replay,
/// and the role in each proof defeats reflection. All frames have a fixed size, so no byte that
/// follows the handshake is read.
///
/// The proof protects only the beginning of a connection. It does not stop a host on the network
/// path from altering later packets.
class Handshake {
 public:
  Handshake(HandshakeRole role, HandshakeTerms terms);

  /// Returns the bytes to send now. If received() threw, they may be a refusal, which gives the
  /// reason to the other end. The owner then sends as much of it as the connection takes
  /// immediately.
  std::string_view output() const { return output_; }
  void sent(size_t bytes) { output_.erase(0, bytes); }

  /// Returns how many bytes to read next, or 0 for none. It never exceeds the bytes of the
  /// handshake.
  size_t wanted() const { return wanted_; }
  /// Takes exactly wanted() bytes. Throws Error(corrupt_data) if the other end is not a Tutti
  /// process, Error(version) with both versions, Error(authentication) for a wrong secret and
  /// Error(unavailable) for another scope or rank. Each error names the peer.
  void received(std::string_view bytes);

  bool done() const { return stage_ == Stage::done && output_.empty(); }
  /// Returns the rank at the other end, or -1. The rank is proved only after done() returns true.
  int peer() const { return peer_; }
  const std::string& peer_name() const { return terms_.peer_name; }

 private:
  enum class Stage { preamble, hello, proof, verdict, done };

  void take_preamble(std::string_view bytes);
  void take_hello(std::string_view bytes);
  void take_proof(std::string_view bytes);
  void take_verdict(std::string_view bytes);
  void expect(Stage stage, size_t bytes);
  [[noreturn]] void refuse(uint8_t reason);
  std::string proof_of(HandshakeRole prover) const;

  HandshakeRole role_;
  HandshakeTerms terms_;
  Stage stage_ = Stage::preamble;
  size_t wanted_ = 0;
  int peer_ = -1;
  std::string output_;
  std::string own_hello_;
  std::string peer_hello_;
};

}  // namespace tutti
