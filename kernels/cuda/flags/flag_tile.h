#pragma once

// The work of one block of a flag kernel: an allreduce in which the ranks' kernels wait for each
// other by flags in memory that all of them reach. It is a template over how flags are stored and
// awaited, so that the same protocol runs on a GPU as PTX and on threads in
// tests/kernels/cuda/flag_test.cc.
//
// Rules that keep it from hanging and from reading too early:
// - a flag is written by one block of one rank and read by one block of another; no rank adds to
//   a peer's flag;
// - a flag contains the number of a round (one launch of the kernel); it only grows and is never
//   reset, because a peer may be a round ahead;
// - a round's number is in the device's memory, and the kernel itself increments it, so that a
//   captured graph advances by itself;
// - the two barriers of a round have separate flags;
// - every wait is bounded, checks an abort flag, and is abandoned without side effects; later
//   rounds then return immediately.

#include "tutti/kernels/cuda/pack/reduce_tile.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti::cuda {

inline constexpr int kFlagLine = 32;  // uint32_t per flag: 128 bytes, which no other block writes

/// The part of a rank's memory that its peers write: flags for each peer, followed by space for
/// packets.
struct FlagBoard {
  uint32_t start[kMostFlagBlocks][kMostFlagRanks][kFlagLine];
  uint32_t end[kMostFlagBlocks][kMostFlagRanks][kFlagLine];
};

/// State that a rank's kernels keep between launches, in its device's memory.
struct FlagState {
  uint32_t round[kMostFlagBlocks];  // number of each block's last round
  uint32_t is_poisoned;             // a wait was abandoned, so later rounds return immediately
};

/// Two elements, each with the number of its round beside it. Each 8-byte half of the 16 bytes is
/// stored as a whole, so a reader always recognises an element of another round.
struct alignas(16) FlagPacket {
  uint32_t first, first_round, second, second_round;
};

/// One allreduce. Grid, variant and count are equal on all ranks, because they come from the plan
/// (the recorded step).
struct FlagCall {
  ReduceTable table;  // each rank's address of the same first element, in rank order
  FlagBoard* boards[kMostFlagRanks];
  FlagPacket* packets[kMostFlagRanks];  // packet_places() packets for each rank
  FlagState* state;                     // state of this rank
  FlagRecord* record;                   // record of this rank
  const uint32_t* abort;                // nonzero means: abandon the wait
  // cut_flags() sets these on the host, so that no GPU thread has to divide.
  int64_t share;             // elements of a rank's share; all elements unless two_shot
  int64_t part;              // elements of a block's part of a share
  int64_t packets_of_block;  // packets of a block from one sender in one round
  int32_t rank, size, blocks;
  FlagVariant variant;
};

/// Returns the number of packets in one rank's space. It holds two rounds, since a peer may be one
/// round ahead.
inline constexpr int64_t packet_places(int64_t packets_of_block, int blocks, int size) {
  return 2 * packets_of_block * blocks * size;
}

/// Waits until `*word` is at least `round`. Returns false if the wait was abandoned.
template <class Atomics>
TUTTI_DEVICE bool await_flag(const FlagCall& call, const uint32_t* word, uint32_t round, int peer,
                             int block, Atomics& atomics) {
  uint32_t seen = 0;
  for (uint32_t polls = 0;; ++polls) {
    seen = atomics.load_acquire(word);
    if (static_cast<int32_t>(seen - round) >= 0) return true;
    if (!atomics.may_go_on(polls, call.abort)) break;
  }
  atomics.leave(*call.record, *call.state, FlagRecord{1, call.rank, peer, block, round, seen});
  return false;
}

/// Called by thread `peer` of a block. say() announces to the peer that this block has reached a
/// barrier. hear() waits until the peer's block has reached it.
template <class Atomics>
TUTTI_DEVICE void say(const FlagCall& call, bool is_end, uint32_t round, int peer, int block,
                      Atomics& atomics) {
  auto& board = *call.boards[peer];
  atomics.store_release(is_end ? board.end[block][call.rank] : board.start[block][call.rank],
                        round);
}
template <class Atomics>
TUTTI_DEVICE bool hear(const FlagCall& call, bool is_end, uint32_t round, int peer, int block,
                       Atomics& atomics) {
  auto& board = *call.boards[call.rank];
  return await_flag(call, is_end ? board.end[block][peer] : board.start[block][peer], round, peer,
                    block, atomics);
}

/// Sets the amount of work of each rank and block, from the table's count and the call's variant,
/// size and blocks.
inline void cut_flags(FlagCall& call) {
  const int64_t count = call.table.count;
  call.share = call.variant == FlagVariant::two_shot ? flag_part(count, call.size) : count;
  call.part = flag_part(call.share, call.blocks);
  call.packets_of_block = (call.part + 1) / 2;
}

/// Makes the kernel's parameters from a DeviceFlags.
inline FlagCall make_flag_call(const DeviceFlags& flags) {
  static_assert(sizeof(FlagState) <= DeviceFlags::kStateBytes &&
                sizeof(FlagBoard) == DeviceFlags::kWordBytes);
  FlagCall call = {};
  call.table = make_reduce_table(
      {flags.inputs, flags.outputs, flags.count, flags.dtype, flags.op, flags.scale});
  call.rank = flags.rank;
  call.size = static_cast<int32_t>(flags.boards.size());
  call.blocks = flags.blocks;
  call.variant = flags.variant;
  for (size_t rank = 0; rank < flags.boards.size(); ++rank) {
    call.boards[rank] = reinterpret_cast<FlagBoard*>(flags.boards[rank]);
    call.packets[rank] = reinterpret_cast<FlagPacket*>(flags.boards[rank] + sizeof(FlagBoard));
  }
  call.state = reinterpret_cast<FlagState*>(flags.state);
  call.record = flags.record;
  call.abort = flags.abort;
  cut_flags(call);
  return call;
}

/// A part of a range: elements [begin, begin + count).
struct FlagPart {
  int64_t begin, count;
};
TUTTI_DEVICE FlagPart part_of(int64_t count, int64_t each, int part) {
  const int64_t begin = each * part < count ? each * part : count;
  const int64_t left = count - begin;
  return {begin, each < left ? each : left};
}

// --- packets: data and flag in one store, for small f32 ------------------------------------------

TUTTI_DEVICE int64_t packet_place(const FlagCall& call, uint32_t round, int sender, int block,
                                  int64_t i) {
  return ((static_cast<int64_t>(round & 1) * call.size + sender) * call.blocks + block) *
             call.packets_of_block +
         i;
}

TUTTI_DEVICE uint32_t word_of(const std::byte* data, int64_t i, int64_t count) {
  return i < count ? load_bytes<uint32_t>(data + 4 * i) : 0;
}

template <class Atomics>
TUTTI_DEVICE void send_packets(const FlagCall& call, uint32_t round, int block, int thread,
                               int threads, Atomics& atomics) {
  const auto part = part_of(call.table.count, call.part, block);
  const auto* own = call.table.inputs[call.rank] + 4 * part.begin;
  for (int64_t i = thread; 2 * i < part.count; i += threads) {
    const FlagPacket packet{word_of(own, 2 * i, part.count), round,
                            word_of(own, 2 * i + 1, part.count), round};
    for (int peer = 0; peer < call.size; ++peer)
      if (peer != call.rank)
        atomics.store_packet(call.packets[peer] + packet_place(call, round, call.rank, block, i),
                             packet);
  }
}

template <class Atomics>
TUTTI_DEVICE bool receive_packets(const FlagCall& call, uint32_t round, int block, int thread,
                                  int threads, Atomics& atomics) {
  const auto part = part_of(call.table.count, call.part, block);
  const auto* own = call.table.inputs[call.rank] + 4 * part.begin;
  auto* output = call.table.outputs[call.rank] + 4 * part.begin;
  for (int64_t i = thread; 2 * i < part.count; i += threads) {
    float sums[2] = {};
    for (int rank = 0; rank < call.size; ++rank) {
      FlagPacket packet{word_of(own, 2 * i, part.count), round, word_of(own, 2 * i + 1, part.count),
                        round};
      const auto* place = call.packets[call.rank] + packet_place(call, round, rank, block, i);
      for (uint32_t polls = 0; rank != call.rank; ++polls) {
        packet = atomics.load_packet(place);
        if (packet.first_round == round && packet.second_round == round) break;
        if (!atomics.may_go_on(polls, call.abort)) {
          atomics.leave(*call.record, *call.state,
                        FlagRecord{1, call.rank, rank, block, round, packet.first_round});
          return false;
        }
      }
      const float first = float_of(packet.first), second = float_of(packet.second);
      sums[0] = rank == 0 ? first : combine<false>(call.table.op, sums[0], first);
      sums[1] = rank == 0 ? second : combine<false>(call.table.op, sums[1], second);
    }
    for (int half = 0; half < 2 && 2 * i + half < part.count; ++half)
      store_bytes(output + 4 * (2 * i + half), close_element<float>(sums[half], call.table));
  }
  return true;
}

// --- a block -------------------------------------------------------------------------------------

/// Does one block's part of the reduction between the barriers. one_shot reduces all elements into
/// this rank's output. two_shot reduces this rank's share into all outputs.
template <class T>
TUTTI_DEVICE void reduce_block(const FlagCall& call, int block, int thread, int threads) {
  const bool is_one_shot = call.variant == FlagVariant::one_shot;
  const auto share = is_one_shot ? FlagPart{0, call.table.count}
                                 : part_of(call.table.count, call.share, call.rank);
  const auto part = part_of(share.count, call.part, block);
  const int first = is_one_shot ? call.rank : 0;
  const int end = is_one_shot ? call.rank + 1 : call.table.output_count;
  reduce_part_of<T>(call.table, {share.begin + part.begin, part.count, first, end}, thread,
                    threads);
}

/// A block's work is split into phases. All threads of the block wait for each other between two
/// phases. All of them return if the phase of any thread returned false.
inline constexpr int kFlagPhases = 6;

/// Runs one thread's share of a phase of block `block`. Returns false if the kernel must return.
///
/// one_shot: every rank reduces all elements from all inputs into its own output, so inputs and
/// outputs must not overlap. two_shot: each rank reduces its share from all inputs into all
/// outputs, which may be the inputs. packets (f32): each rank sends its elements to all peers, and
/// reduces what it receives. T is the table's element type, and kPackets is true for the variant
/// packets.
template <class T, bool kPackets, class Atomics>
TUTTI_DEVICE bool flag_phase(const FlagCall& call, int phase, int block, int thread, int threads,
                             Atomics& atomics) {
  const uint32_t round = call.state->round[block] + 1;
  const bool speaks = thread < call.size && thread != call.rank;
  switch (phase) {
    case 0:
      if (atomics.load_acquire(&call.state->is_poisoned) != 0) return false;
      if constexpr (kPackets)
        send_packets(call, round, block, thread, threads, atomics);
      else if (speaks)
        say(call, false, round, thread, block, atomics);
      return true;
    case 1:
      return kPackets || !speaks || hear(call, false, round, thread, block, atomics);
    case 2:
      if constexpr (kPackets) {
        return receive_packets(call, round, block, thread, threads, atomics);
      } else {
        reduce_block<T>(call, block, thread, threads);
        return true;
      }
    case 3:
      if (!kPackets && speaks) say(call, true, round, thread, block, atomics);
      return true;
    case 4:
      return kPackets || !speaks || hear(call, true, round, thread, block, atomics);
    default:
      if (thread == 0) call.state->round[block] = round;
      return true;
  }
}

}  // namespace tutti::cuda
