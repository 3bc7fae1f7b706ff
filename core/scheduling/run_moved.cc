// Operations other than allreduce. A single operation uses the user's memory directly. Several
// allgathers or reduce_scatters may share a bucket. The bucket has one section per rank, with the
// parts of all operations for that rank one after another. It is packed from the operations' inputs
// and unpacked into their outputs.

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <numeric>
#include <utility>

#include "tutti/core/scheduling/run.h"
#include "tutti/tensor/packing.h"

namespace tutti {

namespace {

// Divides `rows` into equal parts. The lowest ranks get the remainder.
std::vector<int64_t> even_rows(int64_t rows, int size) {
  std::vector<int64_t> parts;
  for (int rank = 0; rank < size; ++rank) parts.push_back(even_share(rows, rank, size));
  return parts;
}

std::vector<int64_t> times(std::vector<int64_t> rows, int64_t row_count) {
  for (auto& count : rows) count *= row_count;
  return rows;
}

int64_t total(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// Returns the number of rows that each rank gives to an allgather, or gets from a reduce_scatter.
std::vector<int64_t> rows_of_ranks(const Response& response, int size) {
  if (!response.rows.empty()) return response.rows;
  const auto& shape = response.signature.shape;
  return even_rows(shape.rank() == 0 ? 1 : shape[0], size);
}

}  // namespace

std::unique_ptr<Run> Run::moved(uint64_t tag, RegionPool& pool, std::span<const Response> answers,
                                const std::vector<int64_t>& given, std::vector<Entry*> entries,
                                int rank, int size) {
  auto run = std::make_unique<Run>(tag, pool);
  run->entries_ = std::move(entries);
  run->contributors_ = size;
  run->rank_ = rank;
  const auto& signature = answers[0].signature;
  auto& collective = run->collective_;
  collective.kind = signature.kind;
  collective.dtype = signature.dtype;
  collective.op = signature.op;
  collective.root = signature.root;
  collective.scale.factor = signature.postscale;
  if (answers.size() == 1)
    run->take_single(answers[0], given, run->entries_.empty() ? nullptr : run->entries_[0], rank,
                     size);
  else
    run->take_members(answers, size);
  collective.send_counts = run->send_counts_;
  collective.recv_counts = run->recv_counts_;
  return run;
}

void Run::take_single(const Response& response, const std::vector<int64_t>& given, Entry* entry,
                      int rank, int size) {
  const auto& signature = response.signature;
  if (entry != nullptr) {
    collective_.input = entry->input.data();
    collective_.output = entry->output.data();
    device_ = entry->input.device();
  }

  const int64_t row_count = signature.shape.row_count();
  const bool is_root = rank == signature.root;
  auto make_output = [&](int64_t rows) {
    if (entry == nullptr || !entry->library_output) return;
    entry->made = Tensor(signature.shape.with_rows(rows), signature.dtype, device_);
    collective_.output = entry->made.data();
  };
  const auto own = static_cast<size_t>(rank);
  if (is_pair(signature.kind)) {
    const bool sends = response.rows[0] == rank;
    collective_.kind = sends ? CollectiveKind::send : CollectiveKind::recv;
    collective_.root = static_cast<int>(response.rows[sends ? 1 : 0]);
    if (!sends && entry != nullptr) entry->work->set_source(collective_.root);
    send_counts_ = {signature.shape.count()};
    return;
  }
  const auto& is = traits(signature.kind);
  switch (is.input) {
    case Content::part:
      send_counts_ = times(response.rows, row_count);
      make_output(is.to_root && !is_root ? 0 : total(response.rows));
      if (!is.to_root) rows_ = response.rows;
      break;
    case Content::parts: {
      const int64_t all = signature.shape.rank() == 0 ? 1 : signature.shape[0];
      const auto rows = response.rows.empty() ? even_rows(all, size) : response.rows;
      send_counts_ = times(rows, row_count);
      make_output(rows[own]);
      if (is.reduces) stage(signature, entry, total(send_counts_), send_counts_[own]);
      break;
    }
    case Content::exchanged:
      rows_.assign(response.rows.begin(), std::prev(response.rows.end()));
      make_output(total(rows_));
      collective_.longest = response.rows.back() * row_count;
      send_counts_ = times(entry != nullptr ? entry->request.rows : given, row_count);
      recv_counts_ = times(rows_, row_count);
      break;
    case Content::whole:
      send_counts_ = {signature.shape.count()};
      if (is.reduces) stage(signature, entry, signature.shape.count(), signature.shape.count());
      break;
    case Content::nothing:
      break;
  }
  if (!rows_.empty() && entry != nullptr) entry->work->set_received(rows_);
}

// Sets the dtype of the transfer. If a reduction is scaled before it starts or is sent in another
// dtype, makes copies on which the reduction works.
void Run::stage(const Signature& signature, Entry* entry, int64_t input_count,
                int64_t output_count) {
  collective_.dtype = signature.wire;
  if (entry == nullptr || (signature.wire == signature.dtype && signature.prescale == 1.0)) return;
  const auto element = size_of(signature.wire);
  region_ = pool_.take(static_cast<size_t>(input_count * element));
  cast(signature.dtype, entry->input.data(), signature.wire, region_->data(), input_count,
       {signature.prescale, 1});
  collective_.input = region_->data();
  if (collective_.output == nullptr || signature.wire == signature.dtype) return;
  output_region_ = pool_.take(static_cast<size_t>(output_count * element));
  outputs_ = {{collective_.output, signature.dtype, 0, output_count}};
  collective_.output = output_region_->data();
}

// Returns whether the input must be copied because the output would overwrite it too early. There
// are two cases. One is a reduce_scatter that runs by a schedule and is not packed. The other is an
// allgather or gather whose input is in the output, but not at the offset of this rank's rows.
bool Run::must_keep_input_apart(bool is_packed) const {
  const auto kind = collective_.kind;
  const bool is_joined = joins_parts(kind);
  if (!is_joined && (!reduces(kind) || !deals_parts(kind) || is_packed)) return false;
  // This rank receives nothing. Its output has no bytes and may begin anywhere.
  if (has_root(kind) && rank_ != collective_.root) return false;
  const auto* input = collective_.input;
  const auto* output = collective_.output;
  if (input == nullptr || output == nullptr) return false;
  const int64_t element = size_of(collective_.dtype);
  const auto own = static_cast<size_t>(rank_);
  const int64_t all = total(send_counts_) * element, mine = send_counts_[own] * element;
  const int64_t given = is_joined ? mine : all, taken = is_joined ? all : mine;
  const std::less_equal<const std::byte*> no_later;
  if (given == 0 || taken == 0 || no_later(input + given, output) ||
      no_later(output + taken, input))
    return false;
  return !is_joined || input != output + total(std::span(send_counts_).first(own)) * element;
}

void Run::keep_input_apart(bool is_packed) {
  if (!must_keep_input_apart(is_packed)) return;
  const bool is_joined = joins_parts(collective_.kind);
  const int64_t count = is_joined ? send_counts_[static_cast<size_t>(rank_)] : total(send_counts_);
  const auto bytes = static_cast<size_t>(count * size_of(collective_.dtype));
  const auto* input = std::exchange(collective_.input, nullptr);
  region_ = pool_.take(bytes, device_);
  collective_.input = region_->data();
  if (device_.kind == DeviceKind::cpu) {
    std::memcpy(region_->data(), input, bytes);
    return;
  }
  // The copy runs on a separate stream, which first waits for the input like the backend would.
  auto& runtime = device_runtime(device_.kind);
  on_device_.copying = std::make_unique<Copying>(runtime, device_);
  for (void* event : on_device_.ready)
    if (event != nullptr) runtime.wait_event(on_device_.copying->stream, event);
  runtime.copy(region_->data(), input, bytes, on_device_.copying->stream);
  on_device_.copying->done =
      std::make_unique<StreamPoint>(runtime, device_, on_device_.copying->stream);
  on_device_.ready = {on_device_.copying->done->event()};
}

// --- several operations in one bucket -----------------------------------------------------------

void Run::take_members(std::span<const Response> answers, int size) {
  const auto& first = answers[0].signature;
  collective_.dtype = first.wire;
  prescale_.factor = first.prescale;
  send_counts_.assign(static_cast<size_t>(size), 0);
  for (const auto& answer : answers) {
    Member member{.counts = {}, .rows = rows_of_ranks(answer, size)};
    member.counts = times(member.rows, answer.signature.shape.row_count());
    for (size_t rank = 0; rank < member.counts.size(); ++rank)
      send_counts_[rank] += member.counts[rank];
    members_.push_back(std::move(member));
  }
  bind_members();
}

// Sets the offset of each operation's elements in the bucket. Packing and unpacking use it.
void Run::bind_members() {
  const bool gathers = joins_parts(collective_.kind);
  const auto own = static_cast<size_t>(rank_);
  inputs_.clear();
  outputs_.clear();
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = *entries_[i];
    if (entry.library_output)
      entry.made = Tensor(entry.request.signature.shape.with_rows(gathers ? total(members_[i].rows)
                                                                          : members_[i].rows[own]),
                          entry.request.signature.dtype);
    if (gathers) entry.work->set_received(members_[i].rows);
  }
  if (entries_.empty()) return;
  // `whole` holds the parts of all ranks, `part` only this rank's part.
  auto& whole = gathers ? outputs_ : inputs_;
  auto& part = gathers ? inputs_ : outputs_;
  int64_t begin = 0, part_begin = 0;
  for (size_t rank = 0; rank < send_counts_.size(); ++rank)
    for (size_t i = 0; i < entries_.size(); ++i) {
      const Entry& entry = *entries_[i];
      const auto& counts = members_[i].counts;
      std::byte* output = entry.library_output ? entry.made.data() : entry.output.data();
      const auto dtype = entry.input.dtype();
      const int64_t before = total(std::span(counts).first(rank));
      auto* side = gathers ? output : entry.input.data();
      whole.push_back({side + before * size_of(dtype), dtype, begin, counts[rank]});
      begin += counts[rank];
      if (rank != own) continue;
      part.push_back({gathers ? entry.input.data() : output, dtype, part_begin, counts[rank]});
      part_begin += counts[rank];
    }
}

void Run::pack_members() {
  if (entries_.empty()) return;
  const auto own = static_cast<size_t>(rank_);
  const int64_t all = total(send_counts_), mine = send_counts_[own];
  const auto region_of = [&](int64_t count) {
    return pool_.take(
        static_cast<size_t>(std::max<int64_t>(1, count * size_of(collective_.dtype))));
  };
  if (joins_parts(collective_.kind)) {
    // This rank's part is packed directly at its final offset.
    output_region_ = region_of(all);
    auto* part = output_region_->data() +
                 total(std::span(send_counts_).first(own)) * size_of(collective_.dtype);
    pack(inputs_, collective_.dtype, part, 0, mine, prescale_);
    collective_.input = part;
  } else {
    region_ = region_of(all);
    pack(inputs_, collective_.dtype, region_->data(), 0, all, prescale_);
    output_region_ = region_of(mine);
    collective_.input = region_->data();
  }
  collective_.output = output_region_->data();
}

void Run::unpack_members() {
  const auto& last = outputs_.back();
  unpack(outputs_, collective_.dtype, output_region_->data(), 0, last.offset + last.count, {});
  pool_.give_back(std::move(region_));
  pool_.give_back(std::move(output_region_));
}

}  // namespace tutti
