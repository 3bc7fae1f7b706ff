#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/backends/shm/shm_fixture.h"
#include "tutti/backends/handshake/handshake.h"
#include "tutti/backends/shm/rendezvous.h"
#include "tutti/backends/shm/unix_socket.h"
#include "tutti/base/error.h"
#include "tutti/base/little_endian.h"

// Shared memory between processes: how ranks connect, how strangers are refused, and the cleanup
// after a dead rank.

namespace tutti::test {
namespace {

std::vector<std::byte> expected_of(int rank) {
  return pattern(300'000, static_cast<uint64_t>(rank));
}

TEST_F(Shm, ProcessesExchangeData) {
  constexpr int kSize = 4;
  const auto body = [&](int rank) {
    auto transport = connect(rank, kSize);
    const auto data = expected_of(rank);
    std::vector<std::vector<std::byte>> received(kSize, std::vector<std::byte>(data.size()));
    std::vector<Ticket> tickets;
    for (int peer = 0; peer < kSize; ++peer) {
      if (peer == rank) continue;
      tickets.push_back(transport->irecv(peer, 1, 0, received[static_cast<size_t>(peer)]));
      tickets.push_back(transport->isend(peer, {1, 0, 0}, data));
    }
    for (const Ticket ticket : tickets)
      if (finish(*transport, ticket) != TransferState::done) return 1;
    for (int peer = 0; peer < kSize; ++peer)
      if (peer != rank && received[static_cast<size_t>(peer)] != expected_of(peer)) return 2;
    transport->goodbye(10);
    return 0;
  };
  std::vector<std::unique_ptr<RankProcess>> ranks;
  for (int rank = 1; rank < kSize; ++rank)
    ranks.push_back(std::make_unique<RankProcess>([&, rank] { return body(rank); }));
  EXPECT_EQ(body(0), 0);
  for (auto& rank : ranks) EXPECT_EQ(rank->wait(), 0);
}

TEST_F(Shm, AKilledRankIsLostWithinASecond) {
  for (const bool has_child : {false, true})
    for (const bool busy : {false, true}) {
      const ScratchFolder folder;
      const auto told = [&](int rank) {
        auto context = thread_context(rank, 2, make_file_store(folder.path()));
        return context;
      };
      int pipe_ends[2];
      ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
      const Descriptor pipe_read(pipe_ends[0]);
      Descriptor pipe_write(pipe_ends[1]);
      RankProcess other([&] {
        auto transport = make_stream_transport(1, find_backend("shm").open(told(1), others(1, 2)));
        // A forked child keeps the rank's sockets open, but the rank must still count as dead.
        pid_t child = has_child ? ::fork() : -1;
        if (child == 0) {
          ::sleep(30);
          ::_exit(0);
        }
        [[maybe_unused]] const auto written = ::write(pipe_write.get(), &child, sizeof child);
        ::sleep(30);  // receives nothing, so the other rank's message stays in flight
        return 0;
      });
      auto transport = make_stream_transport(0, find_backend("shm").open(told(0), others(0, 2)));
      pid_t child = -1;
      ASSERT_EQ(::read(pipe_read.get(), &child, sizeof child), ssize_t{sizeof child});
      const auto data = pattern(50 << 20, 1);
      const Ticket ticket = busy ? transport->isend(1, {1, 0, 0}, data) : 0;
      for (int i = 0; i < 20; ++i) transport->progress();
      const auto before = Clock::now();
      other.kill(SIGKILL);
      const auto event = wait_event(*transport);
      const double seconds = std::chrono::duration<double>(Clock::now() - before).count();
      if (child > 0) ::kill(child, SIGKILL);
      ASSERT_TRUE(event);
      EXPECT_EQ(event->kind, PeerEvent::Kind::lost);
      EXPECT_EQ(event->peer, 1);
      EXPECT_LT(seconds, 1);
      if (busy) {
        EXPECT_EQ(transport->test(ticket), TransferState::failed);
      }
    }
}

TEST_F(Shm, TheLastWordsOfAProcessArrive) {
  const auto data = pattern(10'000, 5);
  RankProcess other([&] {
    auto transport = connect(1, 2);
    const Ticket ticket = transport->isend(0, {7, 0, 0}, data);
    transport->progress();
    return transport->test(ticket) == TransferState::done ? 0 : 1;
    // The process ends without a goodbye.
  });
  auto transport = connect(0, 2);
  EXPECT_EQ(other.wait(), 0);
  std::vector<std::byte> memory(data.size());
  const Ticket ticket = transport->irecv(1, 7, 0, memory);
  EXPECT_EQ(finish(*transport, ticket), TransferState::done);
  EXPECT_TRUE(memory == data);
  const auto event = wait_event(*transport);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->kind, PeerEvent::Kind::lost);
}

int open_descriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

int mappings_of_rings() {
  std::FILE* maps = std::fopen("/proc/self/maps", "r");
  int count = 0;
  char line[512];
  while (std::fgets(line, sizeof line, maps))
    if (std::string_view(line).find("memfd:tutti") != std::string_view::npos) ++count;
  std::fclose(maps);
  return count;
}

TEST_F(Shm, NothingIsLeft) {
  const int before = open_descriptors();
  {
    auto ends = make_transports(find_backend("shm"), 4);
    EXPECT_EQ(mappings_of_rings(), 12);
    EXPECT_GT(open_descriptors(), before);
  }
  EXPECT_EQ(mappings_of_rings(), 0);
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(Shm, NamesTheMissingRanks) {
  // Only ranks 0 and 2 of 4 are present.
  std::vector<std::string> texts(2);
  std::vector<std::thread> threads;
  for (const int rank : {0, 2})
    threads.emplace_back([&, rank] {
      const auto before = Clock::now();
      const auto error = error_of([&] { connect(rank, 4, 2); });
      EXPECT_EQ(error.code(), ErrorCode::timeout);
      EXPECT_EQ(error.rank(), 1);
      EXPECT_LT(Clock::now() - before, std::chrono::seconds(6));
      texts[static_cast<size_t>(rank / 2)] = error.what();
    });
  for (auto& thread : threads) thread.join();
  EXPECT_NE(texts[0].find("rank 0 waited for ranks 1 3 "), std::string::npos) << texts[0];
  EXPECT_NE(texts[1].find("rank 2 waited for ranks 1 3 "), std::string::npos) << texts[1];
}

// The name of a rank's socket, as the store has it.
std::string socket_name(Store& store, int rank) {
  const auto text = store.get("shm/address/" + std::to_string(rank), Deadline::after(20));
  return text.substr(0, text.find(' '));
}

TEST_F(Shm, StrangersAreTurnedAway) {
  const auto store = make_file_store(folder_.path());
  std::unique_ptr<Transport> zero;
  std::thread rank_0([&] { zero = connect(0, 2); });
  const auto name = socket_name(*store, 0);
  std::vector<Descriptor> strangers;
  for (size_t i = 0; i < 80; ++i) {
    bool busy = false;
    auto socket = connect_unix(name, busy);
    ASSERT_TRUE(socket);
    // The strangers: silent ones, garbage, and one that starts like a rank but does not know the
    // token.
    if (i % 4 == 1) send_unix(socket.get(), pattern(100, i));
    if (i % 4 == 2) {
      auto almost = pattern(60, i);
      std::memcpy(almost.data(), "tuttishm", 8);
      const int descriptors[] = {0, 1, 2};
      send_unix(socket.get(), almost, descriptors);
    }
    if (i % 4 == 3) ::shutdown(socket.get(), SHUT_RDWR);
    if (i % 4 == 0 || i % 8 == 1) strangers.push_back(std::move(socket));
  }
  auto one = connect(1, 2);
  rank_0.join();
  ASSERT_TRUE(zero);
  const auto data = pattern(100, 1);
  std::vector<std::byte> memory(100);
  const Ticket send = one->isend(0, {1, 0, 0}, data);
  const Ticket recv = zero->irecv(1, 1, 0, memory);
  one->progress();
  EXPECT_EQ(finish(*zero, recv), TransferState::done);
  EXPECT_EQ(finish(*one, send), TransferState::done);
  EXPECT_TRUE(memory == data);
}

// The peer knows the token, but one of its doorbells is a pipe, which could block the rank that
// rings it.
TEST_F(Shm, ADoorbellThatMayBlockIsRefused) {
  constexpr size_t kRingBytes = 64 << 10;
  const auto store = make_file_store(folder_.path());
  for (const size_t wrong : {1, 2}) {
    std::optional<Error> refused;
    std::thread rank_0([&] {
      try {
        const int peers[] = {1};
        connect_through_memory(context(0, 2), peers);
      } catch (const Error& error) {
        refused = error;
      }
    });
    const auto address = store->get("shm/address/0", Deadline::after(20));
    store->erase("shm/address/0");
    const auto space = address.find(' ');
    bool busy = false;
    const auto socket = connect_unix(address.substr(0, space), busy);
    std::string hello = "tuttishm";
    append_number(hello, kWireVersion);
    append_number(hello, 1);
    append_number(hello, 0);
    append_number(hello, uint64_t{kRingBytes});
    hello += address.substr(space + 1);
    int pipe_ends[2];
    EXPECT_EQ(::pipe(pipe_ends), 0);
    const Descriptor reader(pipe_ends[0]), writer(pipe_ends[1]);
    const auto rings = SharedRings::create(kRingBytes);
    const Bell bells[2];
    int descriptors[] = {rings.descriptor(), bells[0].descriptor(), bells[1].descriptor()};
    descriptors[wrong] = writer.get();
    EXPECT_TRUE(send_unix(socket.get(), std::as_bytes(std::span(hello)), descriptors));
    rank_0.join();
    ASSERT_TRUE(refused);
    EXPECT_STREQ(refused->what(),
                 "rank 1 did not send the descriptors of its ring buffers to rank 0");
    store->erase("shm/failure");
  }
}

// Rank 0 accepts and closes connections before the caller could identify itself, as a crowded rank
// does.
TEST_F(Shm, ACallerThatIsDismissedCallsAgain) {
  const auto store = make_file_store(folder_.path());
  const auto name = "tutti-test-" + std::to_string(::getpid());
  const auto door = listen_unix(name);
  std::unique_ptr<Transport> one;
  std::thread rank_1([&] { one = connect(1, 2); });
  store->set("shm/address/0", name + " " + std::string(32, 't'));
  Descriptor call;
  for (int calls = 0; calls < 4; ++calls) {
    call.reset();
    const auto deadline = Deadline::after(10);
    while (!call && !deadline.passed()) {
      call = accept_unix(door.get());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(call) << "call " << calls;
  }
  const std::string word = "welcome!";
  EXPECT_TRUE(send_unix(call.get(), std::as_bytes(std::span(word))));
  rank_1.join();
  EXPECT_TRUE(one);
}

TEST_F(Shm, RanksOfAnotherUserAreRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  for (const int foreign : {0, 1}) {
    TcpStoreServer server("127.0.0.1", 0, "secret");
    const auto open = [&](int rank) {
      auto store = connect_tcp_store("127.0.0.1", server.port(), "secret", Deadline::after(10));
      find_backend("shm").open(thread_context(rank, 2, store), others(rank, 2));
    };
    RankProcess other([&] {
      if (::setresuid(12345, 12345, 12345) != 0) return 98;
      return error_of([&] { open(foreign); }).code() == ErrorCode::authentication ? 7 : 8;
    });
    const auto error = error_of([&] { open(1 - foreign); });
    EXPECT_EQ(error.code(), ErrorCode::authentication) << error.what();
    EXPECT_EQ(error.rank(), foreign);
    EXPECT_NE(std::string(error.what()).find("; ranks that share memory must belong to one user"),
              std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("12345"), std::string::npos) << error.what();
    EXPECT_EQ(other.wait(), 7);
  }
}

TEST_F(Shm, AnotherNetworkNamespaceIsAnotherHost) {
  int status_pipe[2];
  ASSERT_EQ(::pipe2(status_pipe, O_CLOEXEC), 0);
  const Descriptor status_read(status_pipe[0]), status_write(status_pipe[1]);
  RankProcess other([&] {
    const char allowed = ::unshare(CLONE_NEWNET) == 0 ? 'y' : 'n';
    if (::write(status_write.get(), &allowed, 1) != 1 || allowed == 'n') return 0;
    try {
      connect(1, 2);
    } catch (const Error& error) {
      const bool is_right =
          error.code() == ErrorCode::unavailable && error.rank() == 0 &&
          std::string(error.what()).find("network namespace") != std::string::npos;
      return is_right ? 7 : 8;
    }
    return 9;
  });
  char allowed = 'n';
  ASSERT_EQ(::read(status_read.get(), &allowed, 1), 1);
  if (allowed == 'n') GTEST_SKIP() << "cannot make a network namespace";
  // The other rank does not wait for its deadline either.
  const auto before = Clock::now();
  const auto error = error_of([&] { connect(0, 2); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable) << error.what();
  EXPECT_EQ(error.rank(), 1);
  EXPECT_LT(Clock::now() - before, std::chrono::seconds(5));
  EXPECT_EQ(other.wait(), 7);
}

TEST_F(Shm, APeerThatWritesNonsenseIntoTheRingIsLost) {
  std::map<int, std::unique_ptr<ShmEnds>> mine;
  std::unique_ptr<Transport> transport;
  std::thread other([&] { transport = connect(1, 2); });
  const auto told = context(0, 2);
  const int peers[] = {1};
  mine = connect_through_memory(told, peers);
  other.join();
  auto& ends = *mine.at(1);
  ends.rings.control(ends.side).head.store(uint64_t{1} << 50);
  ends.peer.ring();
  const auto event = wait_event(*transport);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->kind, PeerEvent::Kind::lost);
  EXPECT_NE(event->detail.find("impossible position"), std::string::npos) << event->detail;
}

}  // namespace
}  // namespace tutti::test
