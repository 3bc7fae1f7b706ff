#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tutti {

enum class HandshakeRole : uint8_t { initiator = 1, acceptor = 2 };

/// Version of everything that our processes send each other over sockets.
inline constexpr uint32_t kWireVersion = 2;

/// A connection that has not proved itself after this many seconds is dropped.
inline constexpr double kHandshakeSeconds = 5;

/// The two sides of a handshake and its purpose.
struct HandshakeTerms {
  // the job's secret; if empty, the handshake proves nothing and only rejects stray connections
  std::string secret;
  std::string scope;      // the purpose of the connection; must be equal on both sides
  int rank = -1;          // own rank; -1: none (the store and its clients)
  int peer = -1;          // the rank wanted at the other end; an acceptor's -1 accepts any rank
  std::string peer_name;  // for errors: "rank 3 (10.0.0.3:4711)"
  uint32_t version = kWireVersion;
};

/// The two ends of a connection prove to each other that they know the job's secret. This class is
/// the pure protocol; its owner moves the bytes. Both ends send a hello (version, role, ranks,
/// scope, nonce) at once. Then the initiator proves itself, and only after that the acceptor. A
/// proof is an HMAC-SHA-256 under the secret over the prover's role, both hellos and the scope.
/// Fresh nonces defeat replay; the role in each proof defeats reflection. All frames have a fixed
/// size, so no byte after the handshake is read.
///
/// The proof protects only the beginning of a connection: it does not stop a host on the way that
/// can alter later packets.
class Handshake {
 public:
  Handshake(HandshakeRole role, HandshakeTerms terms);

  /// Returns the bytes to send now. After received() threw, they may be the refusal that gives the
  /// other side the reason; send it if the connection takes it.
  std::string_view output() const { return output_; }
  void sent(size_t bytes) { output_.erase(0, bytes); }

  /// Returns how many bytes to read next, never more than the handshake has. 0: nothing more to
  /// read.
  size_t wanted() const { return wanted_; }
  /// Takes exactly wanted() bytes. Throws Error(corrupt_data) if the other end is not a Tutti
  /// process, Error(version) with both versions, Error(authentication) for a wrong secret and
  /// Error(unavailable) for another scope or rank. Each error names the peer.
  void received(std::string_view bytes);

  bool done() const { return stage_ == Stage::done && output_.empty(); }
  /// Returns the rank at the other end, or -1. It is proved only once done().
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
