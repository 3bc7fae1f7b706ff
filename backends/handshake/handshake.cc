#include "tutti/backends/handshake/handshake.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/base/little_endian.h"

namespace tutti {

namespace {

// The preamble is magic and version. Its form never changes. So processes of any two versions can
// report each other's version.
constexpr std::string_view kMagic = "TUTTI\r\n\x1a";
constexpr size_t kPreambleBytes = 8 + 4;
constexpr size_t kNonceBytes = 32;
constexpr size_t kScopeBytes = 32;
// The hello follows the preamble: role, own rank, wanted rank, digest of the scope, nonce.
constexpr size_t kHelloBytes = 1 + 4 + 4 + kScopeBytes + kNonceBytes;
constexpr size_t kProofBytes = 32;

// The acceptor's answers. These numbers are part of the protocol.
constexpr uint8_t kWelcome = 0;
constexpr uint8_t kWrongSecret = 1;
constexpr uint8_t kOtherScope = 2;
constexpr uint8_t kOtherRank = 3;

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(count)) != 1)
    throw Error(ErrorCode::io, "the operating system gives no random numbers for a handshake");
  return bytes;
}

std::string hmac_sha256(std::string_view key, std::string_view message) {
  std::string mac(kProofBytes, '\0');
  unsigned length = 0;
  // HMAC() takes a null key for "the key of the previous call". So an empty key gets a valid
  // address.
  const char* key_bytes = key.empty() ? "" : key.data();
  const auto* done = HMAC(EVP_sha256(), key_bytes, static_cast<int>(key.size()),
                          reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                          reinterpret_cast<unsigned char*>(mac.data()), &length);
  TUTTI_CHECK(done != nullptr && length == kProofBytes);
  return mac;
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

HandshakeRole opposite(HandshakeRole role) {
  return role == HandshakeRole::initiator ? HandshakeRole::acceptor : HandshakeRole::initiator;
}

Error refusal(uint8_t reason, const HandshakeTerms& terms, int peer) {
  switch (reason) {
    case kWrongSecret:
      return {ErrorCode::authentication,
              fmt::format("{} and this process do not share one job secret; give every process of "
                          "the job the same TUTTI_SECRET, and check that no other job uses this "
                          "address",
                          terms.peer_name)};
    case kOtherScope:
      return {ErrorCode::unavailable,
              fmt::format("{} belongs to another job or communicator; check the address, or give "
                          "each job a name of its own (TUTTI_JOB)",
                          terms.peer_name)};
    case kOtherRank:
      return {
          ErrorCode::unavailable,
          fmt::format("{} calls itself rank {}, this process is rank {}, and they do not expect "
                      "each other; check that each rank has a number of its own (TUTTI_RANK)",
                      terms.peer_name, peer, terms.rank)};
    default:
      return {ErrorCode::corrupt_data,
              fmt::format("{} ended the handshake with the unknown answer {}", terms.peer_name,
                          reason)};
  }
}

}  // namespace

Handshake::Handshake(HandshakeRole role, HandshakeTerms terms)
    : role_(role), terms_(std::move(terms)) {
  own_hello_ = kMagic;
  append_number(own_hello_, terms_.version);
  append_number(own_hello_, static_cast<uint8_t>(role_));
  append_number(own_hello_, static_cast<int32_t>(terms_.rank));
  append_number(own_hello_, static_cast<int32_t>(terms_.peer));
  // The digest of the scope is sent in the clear and without the secret. It only serves to tell a
  // stray connection from a wrong secret.
  own_hello_ += hmac_sha256("", terms_.scope);
  own_hello_ += random_bytes(kNonceBytes);
  output_ = own_hello_;
  expect(Stage::preamble, kPreambleBytes);
}

void Handshake::expect(Stage stage, size_t bytes) {
  stage_ = stage;
  wanted_ = bytes;
}

void Handshake::received(std::string_view bytes) {
  TUTTI_CHECK(bytes.size() == wanted_ && wanted_ > 0);
  switch (stage_) {
    case Stage::preamble:
      return take_preamble(bytes);
    case Stage::hello:
      return take_hello(bytes);
    case Stage::proof:
      return take_proof(bytes);
    case Stage::verdict:
      return take_verdict(bytes);
    case Stage::done:
      return;
  }
}

void Handshake::take_preamble(std::string_view bytes) {
  peer_hello_ = bytes;
  if (!bytes.starts_with(kMagic)) {
    output_.clear();  // a stranger gets no reply
    throw Error(
        ErrorCode::corrupt_data,
        fmt::format("{} is not a Tutti process; check the address and the port", terms_.peer_name));
  }
  bytes.remove_prefix(kMagic.size());
  const auto version = take_number<uint32_t>(bytes);
  if (version != terms_.version)
    throw Error(ErrorCode::version,
                fmt::format("{} speaks wire version {}, this process {}; run one version of Tutti "
                            "on all hosts",
                            terms_.peer_name, version, terms_.version));
  expect(Stage::hello, kHelloBytes);
}

void Handshake::take_hello(std::string_view bytes) {
  peer_hello_ += bytes;
  const auto role = take_number<uint8_t>(bytes);
  const auto rank = take_number<int32_t>(bytes);
  const auto wanted = take_number<int32_t>(bytes);
  const auto scope = bytes.substr(0, kScopeBytes);
  if (role != static_cast<uint8_t>(opposite(role_))) {
    output_.clear();
    throw Error(ErrorCode::authentication,
                fmt::format("{} sent this process its own side of the handshake back; something "
                            "reflects connections, check the address and the port",
                            terms_.peer_name));
  }
  const bool same_scope =
      scope == std::string_view(own_hello_)
                   .substr(own_hello_.size() - kNonceBytes - kScopeBytes, kScopeBytes);
  const bool same_rank = wanted == terms_.rank && (terms_.peer < 0 || rank == terms_.peer);
  peer_ = rank;
  if (role_ == HandshakeRole::acceptor) {
    if (!same_scope) refuse(kOtherScope);
    if (!same_rank) refuse(kOtherRank);
    return expect(Stage::proof, kProofBytes);
  }
  // The acceptor may not know yet which rank connects. So the rank that it wants is not checked.
  if (!same_scope) throw refusal(kOtherScope, terms_, rank);
  if (rank != terms_.peer) throw refusal(kOtherRank, terms_, rank);
  output_ += proof_of(role_);
  expect(Stage::verdict, 1 + kProofBytes);
}

void Handshake::take_proof(std::string_view bytes) {
  if (!equal_in_constant_time(bytes, proof_of(HandshakeRole::initiator))) refuse(kWrongSecret);
  append_number(output_, kWelcome);
  output_ += proof_of(role_);
  expect(Stage::done, 0);
}

void Handshake::take_verdict(std::string_view bytes) {
  const auto reason = take_number<uint8_t>(bytes);
  if (reason != kWelcome) throw refusal(reason, terms_, peer_);
  if (!equal_in_constant_time(bytes, proof_of(HandshakeRole::acceptor)))
    throw refusal(kWrongSecret, terms_, peer_);
  expect(Stage::done, 0);
}

void Handshake::refuse(uint8_t reason) {
  append_number(output_, reason);
  output_ += std::string(kProofBytes, '\0');
  throw refusal(reason, terms_, peer_);
}

std::string Handshake::proof_of(HandshakeRole prover) const {
  const bool initiator = role_ == HandshakeRole::initiator;
  std::string transcript = "tutti handshake proof";
  append_number(transcript, static_cast<uint8_t>(prover));
  transcript += initiator ? own_hello_ : peer_hello_;
  transcript += initiator ? peer_hello_ : own_hello_;
  transcript += terms_.scope;
  return hmac_sha256(terms_.secret, transcript);
}

}  // namespace tutti
