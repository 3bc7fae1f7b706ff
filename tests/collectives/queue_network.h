#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <vector>

#include "tutti/collectives/transport.h"

namespace tutti::test {

class QueueTransport;

/// Ranks in one thread. Each step() delivers one message, in random order. A send completes at its
/// delivery or, at random, earlier; canceled tickets are released later. Two things are errors:
/// bytes that change while a send uses them, unless they are lent, and bytes that were reported as
/// written but were not.
class QueueNetwork {
 public:
  QueueNetwork(int size, uint64_t seed);
  QueueTransport& transport(int rank) { return *transports_[static_cast<size_t>(rank)]; }
  int size() const { return static_cast<int>(transports_.size()); }
  /// Makes one random event happen. Returns false if nothing can happen.
  bool step();
  /// The next event fails a ticket that is pending at this rank.
  void fail_one(int rank) { failing_rank_ = rank; }
  /// The next view that a receiver releases turns out to have been invalid.
  void take_back_one() { takes_back_ = true; }

  int views = 0;               // views that receives used
  int returns = 0;             // messages that were written to a loan, and so are in place already
  bool has_tampering = false;  // sent bytes changed before the send completed
  int most_waiting = 0;        // the most receives that one rank had pending

 private:
  friend class QueueTransport;
  struct Transfer {
    int from, to;
    uint64_t tag;
    uint32_t key;
    uint32_t verdict;
    std::byte* bytes;
    size_t count;
    std::vector<std::byte> copy;  // sends: a copy of the bytes from when they were posted
    TransferState state = TransferState::pending;
    bool is_send, is_cancelled = false, is_taken = false;
    bool may_view = false;
    bool is_lent = false, is_written = false;  // sends: the receiver may write there, and did
    uint64_t place = 0;                        // sends: the address where the bytes are already
    std::vector<std::byte> view = {};          // receives: the sender's data, if they view it
    std::shared_ptr<Transfer> viewed = {};
  };
  using TransferPointer = std::shared_ptr<Transfer>;

  void settle(Transfer& transfer, TransferState state);
  bool matches(const Transfer& send, const Transfer& recv) const {
    return send.from == recv.from && send.to == recv.to && send.tag == recv.tag &&
           send.key == recv.key;
  }

  std::mt19937_64 random_;
  std::vector<TransferPointer> sends_, recvs_;
  std::vector<std::unique_ptr<QueueTransport>> transports_;
  std::vector<std::vector<std::byte>> read_;  // released views
  int failing_rank_ = -1;
  bool takes_back_ = false;
};

class QueueTransport final : public Transport {
 public:
  QueueTransport(QueueNetwork& network, int rank, int size)
      : network_(network), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Ticket isend(int peer, const MessageHeader& header, std::span<const std::byte> bytes) override {
    auto transfer = std::make_shared<QueueNetwork::Transfer>(QueueNetwork::Transfer{
        rank_, peer, header.tag, header.key, header.verdict, const_cast<std::byte*>(bytes.data()),
        bytes.size(), std::vector<std::byte>(bytes.begin(), bytes.end()), TransferState::pending,
        true});
    transfer->is_lent = header.is_lent;
    transfer->place = header.place;
    network_.sends_.push_back(transfer);
    ++counters_.messages_sent;
    return add(transfer);
  }
  Ticket irecv(int peer, uint64_t tag, uint32_t key, std::span<std::byte> bytes) override {
    auto transfer = std::make_shared<QueueNetwork::Transfer>(QueueNetwork::Transfer{
        peer, rank_, tag, key, 0, bytes.data(), bytes.size(), {}, TransferState::pending, false});
    network_.recvs_.push_back(transfer);
    return add(transfer);
  }
  Ticket irecv_view(int peer, uint64_t tag, uint32_t key, std::span<std::byte> bytes) override {
    const Ticket ticket = irecv(peer, tag, key, bytes);
    tickets_.at(ticket)->may_view = true;
    return ticket;
  }
  const std::byte* view(Ticket ticket) override {
    const auto found = tickets_.find(ticket);
    const bool has_view = found != tickets_.end() && found->second->viewed;
    return has_view ? found->second->view.data() : nullptr;
  }
  // Sometimes refuses, like a transport that cannot lend memory.
  Loan loan(Ticket ticket) override {
    auto& lent = *tickets_.at(ticket)->viewed;
    if (!lent.is_lent || network_.random_() % 4 == 0) return {};
    lent.is_written = true;
    return {lent.bytes, reinterpret_cast<uintptr_t>(lent.bytes)};
  }
  bool give_back(Ticket ticket) override {
    auto& transfer = *tickets_.at(ticket);
    network_.settle(*transfer.viewed, TransferState::done);
    // A receiver that reads on reads nonsense.
    std::ranges::fill(transfer.view, std::byte{0xee});
    network_.read_.push_back(std::move(transfer.view));
    tickets_.erase(ticket);
    return !std::exchange(network_.takes_back_, false);
  }
  TransferState test(Ticket ticket, uint32_t* verdict) override {
    const auto found = tickets_.find(ticket);
    if (found == tickets_.end()) throw std::logic_error("a ticket that is not there");
    const auto state = found->second->state;
    if (state == TransferState::pending) return state;
    if (!found->second->is_send && state == TransferState::done && verdict != nullptr)
      *verdict |= found->second->verdict;
    if (state == TransferState::done && found->second->viewed) return state;
    tickets_.erase(found);
    return state;
  }
  void cancel(Ticket ticket) override { tickets_.at(ticket)->is_cancelled = true; }
  size_t tickets() const { return tickets_.size(); }

  TransportCounters counters() const override { return counters_; }
  // The executor does not use these functions.
  bool progress() override { return false; }
  bool arm() override { return true; }
  int descriptor() const override { return -1; }
  void abort(const Error&) noexcept override {}
  void discard(uint64_t, uint64_t) override {}
  bool has_veto(uint64_t) const override { return false; }
  void post(int, std::span<const std::byte>) override {}
  bool take(int&, std::vector<std::byte>&) override { return false; }
  std::optional<PeerEvent> take_event() override { return {}; }
  void goodbye(double) noexcept override {}
  std::string_view route(int) const override { return "queue"; }

 private:
  Ticket add(const std::shared_ptr<QueueNetwork::Transfer>& transfer) {
    tickets_[++last_ticket_] = transfer;
    network_.most_waiting = std::max(network_.most_waiting, static_cast<int>(tickets_.size()));
    return last_ticket_;
  }

  QueueNetwork& network_;
  const int rank_, size_;
  Ticket last_ticket_ = 0;
  std::map<Ticket, std::shared_ptr<QueueNetwork::Transfer>> tickets_;
  TransportCounters counters_;
};

inline QueueNetwork::QueueNetwork(int size, uint64_t seed) : random_(seed) {
  for (int rank = 0; rank < size; ++rank)
    transports_.push_back(std::make_unique<QueueTransport>(*this, rank, size));
}

inline void QueueNetwork::settle(Transfer& transfer, TransferState state) {
  if (transfer.is_send && transfer.state == TransferState::pending && transfer.count > 0 &&
      !transfer.is_written &&
      std::memcmp(transfer.bytes, transfer.copy.data(), transfer.count) != 0)
    has_tampering = true;
  if (transfer.state == TransferState::pending) transfer.state = state;
}

inline bool QueueNetwork::step() {
  const auto is_over = [](const TransferPointer& transfer) {
    return transfer->is_taken ||
           (transfer->is_cancelled && transfer->state != TransferState::pending) ||
           transfer->state == TransferState::failed;
  };
  std::erase_if(sends_, is_over);
  std::erase_if(recvs_, is_over);
  std::vector<std::function<void()>> events;
  for (const auto& recv : recvs_) {
    if (recv->is_cancelled) {
      events.push_back([&] { settle(*recv, TransferState::failed); });
      continue;
    }
    if (recv->to == failing_rank_) {
      settle(*recv, TransferState::failed);
      failing_rank_ = -1;
      return true;
    }
    for (const auto& send : sends_) {
      if (send->is_cancelled || !matches(*send, *recv)) continue;
      events.push_back([&] {
        const bool fits = send->count == recv->count;
        if (fits && recv->may_view && recv->count > 0 && random_() % 2 == 0 &&
            send->state == TransferState::pending) {
          ++views;
          recv->view = send->copy;
          recv->viewed = send;
          recv->verdict = send->verdict;
          recv->state = TransferState::done;
          send->is_taken = recv->is_taken = true;
          return;
        }
        const bool is_there = send->place == reinterpret_cast<uintptr_t>(recv->bytes);
        if (fits && recv->count > 0 && is_there) {
          ++returns;
          has_tampering |= std::memcmp(recv->bytes, send->copy.data(), recv->count) != 0;
        } else if (fits && recv->count > 0) {
          std::memcpy(recv->bytes, send->copy.data(), recv->count);
        }
        recv->verdict = send->verdict;
        settle(*send, TransferState::done);
        settle(*recv, fits ? TransferState::done : TransferState::failed);
        send->is_taken = recv->is_taken = true;
      });
    }
  }
  for (const auto& send : sends_) {
    if (send->is_cancelled)
      events.push_back([&] { settle(*send, TransferState::failed); });
    else if (send->state == TransferState::pending && random_() % 4 == 0)
      events.push_back([&] { settle(*send, TransferState::done); });
  }
  if (events.empty()) return false;
  events[random_() % events.size()]();
  return true;
}

}  // namespace tutti::test
