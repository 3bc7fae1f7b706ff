// Measures all collectives of Gloo except allreduce, over TCP.
#include <gloo/allgather.h>
#include <gloo/alltoall.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/reduce_scatter.h>
#include <gloo/scatter.h>

#include <memory>
#include <vector>

#include "benchmarks/peers/gloo_team.h"
#include "benchmarks/peers/kinds.h"

namespace tutti::benchmarks {

namespace {

using Sum = void (*)(void*, const void*, const void*, size_t);
constexpr Sum kSum = &gloo::sum<float>;

size_t whole(const Exercise& e) { return static_cast<size_t>(e.total); }
size_t part(const Exercise& e) { return static_cast<size_t>(e.count); }

using Make = std::function<void()> (*)(const ContextPtr&, const Exercise&);

const std::map<std::string, Make>& makers() {
  static const std::map<std::string, Make> all = {
      {"allgather",
       [](const ContextPtr& context, const Exercise& e) -> std::function<void()> {
         auto options = std::make_shared<gloo::AllgatherOptions>(context);
         options->setInput(e.input, part(e));
         options->setOutput(e.output, whole(e));
         return [options] { gloo::allgather(*options); };
       }},
      {"gather",
       [](const ContextPtr& context, const Exercise& e) -> std::function<void()> {
         auto options = std::make_shared<gloo::GatherOptions>(context);
         options->setInput(e.input, part(e));
         if (e.rank == kRoot) options->setOutput(e.output, whole(e));
         options->setRoot(kRoot);
         return [options] { gloo::gather(*options); };
       }},
      {"scatter",
       [](const ContextPtr& context, const Exercise& e) -> std::function<void()> {
         auto options = std::make_shared<gloo::ScatterOptions>(context);
         std::vector<float*> parts;
         for (int rank = 0; rank < e.ranks; ++rank) parts.push_back(e.input + rank * e.count);
         if (e.rank == kRoot) options->setInputs(parts, part(e));
         options->setOutput(e.output, part(e));
         options->setRoot(kRoot);
         return [options] { gloo::scatter(*options); };
       }},
      {"alltoall",
       [](const ContextPtr& context, const Exercise& e) -> std::function<void()> {
         auto options = std::make_shared<gloo::AlltoallOptions>(context);
         options->setInput(e.input, whole(e));
         options->setOutput(e.output, whole(e));
         return [options] { gloo::alltoall(*options); };
       }},
      // Gloo's only reduce_scatter works in place, and its result is at the beginning of the
      // buffer.
      {"reduce_scatter",
       [](const ContextPtr& context, const Exercise& e) -> std::function<void()> {
         using Algorithm = gloo::ReduceScatterHalvingDoubling<float>;
         auto algorithm = std::make_shared<Algorithm>(
             context, std::vector<float*>{e.output}, static_cast<int>(e.total),
             std::vector<int>(static_cast<size_t>(e.ranks), static_cast<int>(e.count)));
         return [algorithm] { algorithm->run(); };
       }},
      {"reduce",
       [](const ContextPtr& context, const Exercise& e) -> std::function<void()> {
         auto options = std::make_shared<gloo::ReduceOptions>(context);
         options->setInput(e.input, whole(e));
         options->setOutput(e.output, whole(e));
         options->setRoot(kRoot);
         options->setReduceFunction(kSum);
         return [options] { gloo::reduce(*options); };
       }},
      {"broadcast",
       [](const ContextPtr& context, const Exercise& e) -> std::function<void()> {
         auto options = std::make_shared<gloo::BroadcastOptions>(context);
         options->setOutput(e.input, whole(e));
         options->setRoot(kRoot);
         return [options] { gloo::broadcast(*options); };
       }},
  };
  return all;
}

}  // namespace

bool is_gloo_kind(const std::string& name) { return makers().contains(name); }

void run_gloo_kind(const Flags& flags, ForkTeam& team, const std::string& folder) {
  const auto context = connect_gloo(flags, team, folder);
  const auto make = makers().at(flags.case_name());
  Row row{.program = "gloo", .case_name = flags.case_name(), .way = flags.case_name()};
  row.ranks = team.size();
  row.transport = "tcp";
  row.words["variant"] = flags.text("variant");
  run_sizes(
      flags, team, row, [&](const Exercise& e) { return make(context, e); },
      flags.case_name() == "reduce_scatter");
}

}  // namespace tutti::benchmarks
