#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tutti {

enum class HandshakeRole : uint8_t { initiator = 1, acceptor = 2 };

/// Version of everything that our processes say to each other on a socket.
inline constexpr uint32_t kWireVersion = 2;

/// A connection that has not proved itself after this many seconds is dropped.
inline constexpr double kHandshakeSeconds = 5;

/// Which two processes meet, and for what.
struct HandshakeTerms {
  std::string secret;     // of the job; may be empty: the handshake then only tells friends apart
  std::string scope;      // what the connection is for; must be equal on both sides
  int rank = -1;          // own rank; -1: none (the store and its clients)
  int peer = -1;          // the rank wanted at the other end; an acceptor's -1 takes any
  std::string peer_name;  // for errors: "rank 3 (10.0.0.3:4711)"
  uint32_t version = kWireVersion;
};

/// Mutual proof that both ends of a connection know the job's secret, as pure protocol: the owner
/// carries the bytes. Both send a hello (version, role, ranks, scope, nonce) at once; then the
/// initiator, and only after that the acceptor, proves itself by an HMAC-SHA-256 under the secret
/// over its own role, both hellos and the scope. Fresh nonces defeat replay, the role in each proof
/// defeats reflection. All frames have a fixed size, so nothing after the handshake is read.
///
/// The proof protects the beginning of a connection, not what follows on it: a host that can alter
/// packets on the way is not kept out.
class Handshake {
 public:
  Handshake(HandshakeRole role, HandshakeTerms terms);

  /// What must be sent now. After received() threw, it may hold the refusal that tells the other
  /// side why; send it if the connection takes it.
  std::string_view output() const { return output_; }
  void sent(size_t bytes) { output_.erase(0, bytes); }

  /// How many bytes to read next; never beyond the handshake. 0: nothing more to read.
  size_t wanted() const { return wanted_; }
  /// Takes exactly wanted() bytes. Throws Error(corrupt_data) for what is no Tutti process,
  /// Error(version) naming both versions, Error(authentication) for a wrong secret and
  /// Error(unavailable) for another scope or rank; each names the peer.
  void received(std::string_view bytes);

  bool done() const { return stage_ == Stage::done && output_.empty(); }
  /// The rank at the other end (proved only once done()), or -1.
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
