#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "tutti/backends/handshake/handshake.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// One side of a handshake: the bytes that it received and how it ended.
struct Side {
  Handshake handshake;
  std::string inbox;
  std::string said;
  std::optional<Error> error = {};
  std::optional<size_t> damaged = {};  // index of a sent byte that is changed on the way

  // Moves the sent bytes to the other side; returns true if there were any.
  bool move(Side& other) {
    bool moved = false;
    std::string output(handshake.output());
    if (!output.empty()) {
      const size_t offset = damaged.value_or(0) - said.size();
      if (damaged && offset < output.size()) output[offset] ^= 1;
      handshake.sent(output.size());
      said += output;
      other.inbox += output;
      moved = true;
    }
    const size_t wanted = handshake.wanted();
    if (!error && wanted > 0 && inbox.size() >= wanted) {
      const auto frame = inbox.substr(0, wanted);
      inbox.erase(0, wanted);
      try {
        handshake.received(frame);
      } catch (const Error& thrown) {
        error = thrown;
      }
      moved = true;
    }
    return moved;
  }
  bool succeeded() const { return !error && handshake.done(); }
};

HandshakeTerms terms(std::string secret, int rank, int peer) {
  return {.secret = std::move(secret),
          .scope = "job/epoch 0/tcp",
          .rank = rank,
          .peer = peer,
          .peer_name = "rank " + std::to_string(peer)};
}

Side initiator(HandshakeTerms terms) {
  return {Handshake(HandshakeRole::initiator, std::move(terms)), {}, {}};
}
Side acceptor(HandshakeTerms terms) {
  return {Handshake(HandshakeRole::acceptor, std::move(terms)), {}, {}};
}

void run(Side& a, Side& b) {
  for (bool has_moved = true; has_moved;) {
    has_moved = a.move(b);
    has_moved |= b.move(a);
  }
}

TEST(HandshakeTest, EqualSecretsMeetAndLearnTheRank) {
  auto caller = initiator(terms("secret", 3, 1));
  auto callee = acceptor(terms("secret", 1, -1));
  run(caller, callee);
  EXPECT_TRUE(caller.succeeded());
  EXPECT_TRUE(callee.succeeded());
  EXPECT_EQ(callee.handshake.peer(), 3);
  EXPECT_EQ(caller.handshake.peer(), 1);
  EXPECT_TRUE(caller.inbox.empty() && callee.inbox.empty());
}

TEST(HandshakeTest, EmptySecretsMeetButNotAnEmptyAndAFullOne) {
  auto caller = initiator(terms("", 3, 1));
  auto callee = acceptor(terms("", 1, 3));
  run(caller, callee);
  EXPECT_TRUE(caller.succeeded() && callee.succeeded());

  auto stranger = initiator(terms("", 3, 1));
  auto host = acceptor(terms("secret", 1, 3));
  run(stranger, host);
  EXPECT_FALSE(stranger.succeeded() || host.succeeded());
}

TEST(HandshakeTest, WrongSecretIsToldToBothSidesAndSaysWhatToCheck) {
  auto caller = initiator(terms("secret", 3, 1));
  auto callee = acceptor(terms("other", 1, -1));
  run(caller, callee);
  ASSERT_TRUE(caller.error && callee.error);
  EXPECT_EQ(caller.error->code(), ErrorCode::authentication);
  EXPECT_EQ(callee.error->code(), ErrorCode::authentication);
  EXPECT_THAT(caller.error->what(), AllOf(HasSubstr("rank 1"), HasSubstr("TUTTI_SECRET")));
}

TEST(HandshakeTest, AnAcceptorThatDoesNotKnowTheSecretIsFoundOut) {
  // The impostor checks nothing, welcomes anybody and cannot prove that it knows the secret.
  auto victim = initiator(terms("secret", 3, 1));
  auto impostor = acceptor(terms("guess", 1, -1));
  victim.move(impostor);
  impostor.move(victim);
  victim.move(impostor);
  victim.move(impostor);
  victim.inbox = std::string(1, '\0') + std::string(32, 'x');
  victim.move(impostor);
  ASSERT_TRUE(victim.error);
  EXPECT_EQ(victim.error->code(), ErrorCode::authentication);
}

TEST(HandshakeTest, VersionsAreNamedOnBothSides) {
  auto old_terms = terms("secret", 3, 1);
  old_terms.version = 7;
  auto caller = initiator(old_terms);
  auto callee = acceptor(terms("secret", 1, -1));
  run(caller, callee);
  ASSERT_TRUE(caller.error && callee.error);
  EXPECT_EQ(caller.error->code(), ErrorCode::version);
  EXPECT_EQ(callee.error->code(), ErrorCode::version);
  const auto own = "version " + std::to_string(kWireVersion);
  EXPECT_THAT(callee.error->what(), AllOf(HasSubstr(" speaks wire version 7, this process " +
                                                    std::to_string(kWireVersion)),
                                          HasSubstr("; run one version of Tutti on all hosts")));
  EXPECT_THAT(caller.error->what(), AllOf(HasSubstr(own), HasSubstr("process 7")));
}

TEST(HandshakeTest, AnotherScopeAndAnotherRankAreToldApartFromAWrongSecret) {
  auto other_scope = terms("secret", 3, 1);
  other_scope.scope = "job/epoch 1/tcp";
  auto caller = initiator(other_scope);
  auto callee = acceptor(terms("secret", 1, -1));
  run(caller, callee);
  ASSERT_TRUE(caller.error && callee.error);
  EXPECT_EQ(caller.error->code(), ErrorCode::unavailable);
  EXPECT_THAT(caller.error->what(), HasSubstr("another job or communicator"));

  auto wants_two = initiator(terms("secret", 3, 2));
  auto is_one = acceptor(terms("secret", 1, -1));
  run(wants_two, is_one);
  ASSERT_TRUE(wants_two.error && is_one.error);
  EXPECT_EQ(wants_two.error->code(), ErrorCode::unavailable);
  EXPECT_THAT(wants_two.error->what(), HasSubstr("TUTTI_RANK"));
}

TEST(HandshakeTest, GarbageIsNoTuttiProcessAndGetsNoAnswer) {
  auto callee = acceptor(terms("secret", 1, -1));
  auto stranger = initiator(terms("secret", 3, 1));
  callee.inbox = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
  EXPECT_THROW(callee.handshake.received(callee.inbox.substr(0, callee.handshake.wanted())), Error);
  EXPECT_TRUE(callee.handshake.output().empty());
  EXPECT_FALSE(callee.handshake.done());
}

TEST(HandshakeTest, ReflectionFailsForBothRoles) {
  for (const auto role : {HandshakeRole::initiator, HandshakeRole::acceptor}) {
    Side victim{Handshake(role, terms("secret", 1, 1)), {}, {}};
    Side mirror{Handshake(role, terms("secret", 1, 1)), {}, {}};
    for (int i = 0; i < 10; ++i) {
      victim.move(mirror);
      victim.inbox += std::exchange(mirror.inbox, "");
    }
    ASSERT_TRUE(victim.error);
    EXPECT_EQ(victim.error->code(), ErrorCode::authentication);
    EXPECT_THAT(
        victim.error->what(),
        HasSubstr("sent this process its own side of the handshake back; something reflects "
                  "connections, check the address and the port"));
    EXPECT_FALSE(victim.handshake.done());
  }
}

// Sends the initiator's proof back as if it were the acceptor's: the transcript is the same, the
// role differs.
TEST(HandshakeTest, AProofDoesNotServeTheOtherRole) {
  auto victim = initiator(terms("secret", 3, 1));
  auto helper = acceptor(terms("secret", 1, -1));
  victim.move(helper);  // hello out
  helper.move(victim);
  victim.move(helper);
  victim.move(helper);  // proof out
  victim.move(helper);
  ASSERT_GE(victim.said.size(), 32u);
  const auto proof = victim.said.substr(victim.said.size() - 32);
  victim.inbox = std::string(1, '\0') + proof;
  victim.move(helper);
  ASSERT_TRUE(victim.error);
  EXPECT_EQ(victim.error->code(), ErrorCode::authentication);
}

TEST(HandshakeTest, ReplayOfAGoodSessionFails) {
  auto caller = initiator(terms("secret", 3, 1));
  auto callee = acceptor(terms("secret", 1, -1));
  run(caller, callee);
  ASSERT_TRUE(callee.succeeded());

  auto again = acceptor(terms("secret", 1, -1));
  auto nobody = initiator(terms("", 0, 0));
  again.inbox = caller.said;
  while (again.move(nobody)) {
  }
  ASSERT_TRUE(again.error);
  EXPECT_EQ(again.error->code(), ErrorCode::authentication);
}

TEST(HandshakeTest, NoByteCanBeChangedOnTheWay) {
  const auto session = [](std::optional<size_t> damaged_by_caller,
                          std::optional<size_t> damaged_by_callee) {
    auto caller = initiator(terms("secret", 3, 1));
    auto callee = acceptor(terms("secret", 1, -1));
    caller.damaged = damaged_by_caller;
    callee.damaged = damaged_by_callee;
    run(caller, callee);
    return std::pair(std::move(caller), std::move(callee));
  };
  const auto [caller, callee] = session({}, {});
  ASSERT_TRUE(caller.succeeded() && callee.succeeded());
  for (size_t i = 0; i < caller.said.size(); ++i) {
    const auto [a, b] = session(i, {});
    EXPECT_FALSE(a.succeeded() && b.succeeded()) << "byte " << i << " of the initiator";
  }
  for (size_t i = 0; i < callee.said.size(); ++i) {
    const auto [a, b] = session({}, i);
    EXPECT_FALSE(a.succeeded() && b.succeeded()) << "byte " << i << " of the acceptor";
  }
}

}  // namespace
}  // namespace tutti
