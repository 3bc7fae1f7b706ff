#include "tests/simulation/draw.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tests/simulation/random.h"

namespace tutti::simulation {

namespace {

enum Stream : uint64_t { kWorld = 1, kProgram, kFaults, kSchedule };

World draw_world(Random& random) {
  World world;
  world.size = static_cast<int>(one_of(random, {2, 2, 3, 3, 4, 5}));
  world.fusion_bytes = int64_t{64} << random.below(7);
  if (random.chance(250)) world.partition_bytes = int64_t{64} << random.below(3);
  if (random.chance(200)) world.cache_capacity = one_of<int64_t>(random, {0, 2, 5});
  world.peer_timeout = one_of<Micros>(random, {1, 3, 10}) * kSecond;
  if (random.chance(200)) world.operation_timeout = one_of<Micros>(random, {2, 5}) * kSecond;
  if (random.chance(300)) world.stall_warning = kSecond / 2;
  world.latency = one_of<Micros>(random, {1, 10, 100, 1000, 10000, 50000});
  if (random.chance(300)) world.far = static_cast<int>(random.between(1, world.size - 1));
  if (random.chance(250)) world.bandwidth = one_of<int64_t>(random, {1 << 17, 1 << 20, 1 << 26});
  world.has_launcher = random.chance(800);
  world.cannot_cancel = random.chance(200);
  world.fails_before_reason = random.chance(200);
  world.works_elsewhere = random.chance(300);
  world.serves_blocking = random.chance(500);
  return world;
}

// A program has these features; each is on in the given share of cases.
struct Features {
  // Blocking calls are drawn more often where ranks share memory, because there they differ most.
  Features(Random& random, bool blocks_more)
      : kinds(random.chance(600)),
        types(random.chance(500)),
        groups(random.chance(350)),
        pairs(random.chance(450)),
        from_any(random.chance(250)),
        blocking(random.chance(blocks_more ? 700 : 350)),
        joins(random.chance(200)),
        memory(random.chance(150)),
        second_script(random.chance(200)),
        shuffles(random.chance(500)),
        deviates(random.chance(500)),
        disagrees(random.chance(300)),
        lacks(random.chance(200)),
        pauses(random.chance(300)),
        waits_for_one(random.chance(300)),
        closes(random.chance(350)),
        splits(random.chance(400)),
        lingers(random.chance(350)),
        moves_on(random.chance(200)),
        hurries(random.chance(400)),
        mixes(random.chance(blocks_more ? 200 : 100)) {
    // These features do not go together. A joined rank neither receives nor makes blocking calls. A
    // rank that lacks an operation would go on to a blocking call, and the others would wait for
    // it.
    if (joins) from_any = blocking = second_script = lacks = false;
    if (lacks || disagrees) from_any = false;
    if (lacks) blocking = false;
  }
  bool kinds, types, groups, pairs, from_any, blocking, joins, memory, second_script, shuffles,
      deviates, disagrees, lacks, pauses, waits_for_one, closes, splits, lingers, moves_on, hurries,
      mixes;
};

// All ranks submit this in each step: single operations, a group, a ring of pairs, or one pair.
struct Item {
  enum class Way { single, group, ring, pair, from_any } way = Way::single;
  std::vector<Operation> operations;
  int shift = 1;           // ring: the distance to the rank that receives
  int sender = 0, to = 0;  // pair: the two ranks
};

class Program {
 public:
  Program(const World& world, Random& random, const DrawOptions& options)
      : random_(random),
        on_(random, options.tier == Tier::shared),
        size_(world.size),
        far_(world.far),
        scale_(options.scale) {}

  std::vector<std::vector<Script>> draw() {
    ranks_.assign(static_cast<size_t>(size_), {Script{}});
    const auto tensors = static_cast<int>(random_.between(2, 4)) * scale_;
    draw_items("t", tensors);
    const auto steps = static_cast<int>(random_.between(3, 6)) * scale_;
    moves_on_at_ = on_.moves_on ? static_cast<int>(random_.between(2, 3)) : steps;
    joins_at_ = on_.joins ? static_cast<int>(random_.below(static_cast<uint64_t>(steps))) : steps;
    if (on_.joins && on_.moves_on && random_.chance(500)) joins_at_ = moves_on_at_;
    joins_early_ = any_rank();
    if (on_.joins && on_.hurries && random_.chance(500)) {  // the join meets the plan of step 1
      joins_at_ = 2;
      comes_last_ = random_.chance(500);
      late_after_join_ = far_ > 0 ? far_ : any_rank();
    }
    if (on_.closes) closes_at_ = static_cast<int>(random_.below(static_cast<uint64_t>(steps)));
    closer_ = any_rank();
    if (on_.memory)
      for (int rank = 0; rank < size_; ++rank) add(rank, action(Action::Kind::allocate, "", 4096));
    for (int step = 0; step < steps; ++step) {
      if (step == moves_on_at_) draw_items("v", tensors);
      draw_step(step);
    }
    for (int rank = 0; rank < size_ && on_.joins; ++rank)
      if (!(rank == joins_early_ && joins_at_ < steps)) add(rank, action(Action::Kind::join));
    if (on_.joins && random_.chance(300)) {  // a new epoch of all ranks
      joins_at_ = steps + 1;
      draw_step(steps);
    }
    // A rank that does not close immediately sees the others leave.
    for (int rank = 0; rank < size_ && on_.lingers; ++rank)
      if (random_.chance(600))
        add(rank, action(Action::Kind::pause, "", one_of<Micros>(random_, {3000, 50000, kSecond})));
    if (on_.second_script) draw_second_scripts();
    return std::move(ranks_);
  }

 private:
  static Action action(Action::Kind kind, std::string text = "", Micros time = 0) {
    return {kind, {}, std::move(text), time};
  }
  int any_rank() { return static_cast<int>(random_.below(static_cast<uint64_t>(size_))); }
  void add(int rank, Action next) {
    ranks_[static_cast<size_t>(rank)].front().push_back(std::move(next));
  }

  void draw_shape(Operation& operation) {
    operation.rows = random_.between(1, 64);
    if (random_.chance(250)) {
      operation.width = random_.between(1, 4);
      operation.rows = random_.between(1, 16);
    }
  }
  // Draws row counts for the ranks whose sum is the operation's rows.
  void draw_splits(Operation& operation) {
    int64_t left = operation.rows;
    for (int rank = 0; rank + 1 < size_; ++rank) {
      operation.splits.push_back(random_.between(0, left));
      left -= operation.splits.back();
    }
    operation.splits.push_back(left);
  }

  Operation draw_operation(const std::string& name) {
    Operation operation;
    operation.name = name;
    if (on_.kinds && random_.chance(600))
      operation.kind = one_of(
          random_, {CollectiveKind::allgather, CollectiveKind::broadcast, CollectiveKind::reduce,
                    CollectiveKind::gather, CollectiveKind::scatter, CollectiveKind::reduce_scatter,
                    CollectiveKind::alltoall, CollectiveKind::barrier});
    if (operation.kind == CollectiveKind::barrier) {
      operation.rows = 0;
      return operation;
    }
    if (on_.types) {
      operation.dtype =
          one_of(random_, {DataType::f64, DataType::f16, DataType::bf16, DataType::i8,
                           DataType::i32, DataType::i64, DataType::u8, DataType::u16});
      if (!reduces(operation.kind) && random_.chance(200)) operation.dtype = DataType::raw;
    }
    if (reduces(operation.kind)) {
      operation.op = one_of(random_, {ReduceOp::sum, ReduceOp::sum, ReduceOp::average,
                                      ReduceOp::min, ReduceOp::max, ReduceOp::product});
      if (is_integer(operation.dtype) && random_.chance(300))
        operation.op = one_of(random_, {ReduceOp::band, ReduceOp::bor, ReduceOp::bxor});
    }
    draw_shape(operation);
    if (operation.kind == CollectiveKind::broadcast || operation.kind == CollectiveKind::reduce ||
        operation.kind == CollectiveKind::gather || operation.kind == CollectiveKind::scatter)
      operation.root = any_rank();
    const bool deals = operation.kind == CollectiveKind::scatter ||
                       operation.kind == CollectiveKind::reduce_scatter ||
                       operation.kind == CollectiveKind::alltoall;
    if (deals && on_.splits && random_.chance(500)) draw_splits(operation);
    return operation;
  }

  Operation draw_moved(const std::string& name) {
    Operation operation;
    operation.name = name;
    operation.kind = CollectiveKind::send;
    if (on_.types) operation.dtype = one_of(random_, {DataType::f64, DataType::u8, DataType::raw});
    draw_shape(operation);
    return operation;
  }

  void draw_items(const std::string& prefix, int count) {
    items_.clear();
    for (int i = 0; i < count; ++i) items_.push_back(draw_item(fmt::format("{}{}", prefix, i)));
    // Two ranks use the name of an operation of all ranks for a send and a receive.
    const auto& first = items_.front();
    if (!on_.pairs || first.way != Item::Way::single || !random_.chance(300)) return;
    Item pair;
    pair.way = Item::Way::pair;
    pair.sender = any_rank();
    pair.to = (pair.sender + static_cast<int>(random_.between(1, size_ - 1))) % size_;
    pair.operations = {draw_moved(first.operations.front().name)};
    if (random_.chance(500) && first.operations.front().count() > 0) {
      pair.operations[0].rows = first.operations.front().rows;
      pair.operations[0].width = first.operations.front().width;
      pair.operations[0].dtype = first.operations.front().dtype;
    }
    items_.push_back(std::move(pair));
  }

  Item draw_item(const std::string& name) {
    Item item;
    if (on_.from_any && random_.chance(300)) {
      item.way = Item::Way::from_any;
      item.operations = {draw_moved(name)};
      item.operations[0].root = any_rank();  // the receiving rank
    } else if (on_.pairs && random_.chance(400)) {
      item.way = Item::Way::ring;
      item.shift = static_cast<int>(random_.between(1, size_ - 1));
      item.operations = {draw_moved(name)};
    } else if (on_.groups && random_.chance(400)) {
      item.way = Item::Way::group;
      const auto kind = one_of(random_, {CollectiveKind::allreduce, CollectiveKind::allgather,
                                         CollectiveKind::reduce_scatter});
      Operation first;
      if (on_.types) first.dtype = one_of(random_, {DataType::f32, DataType::f16, DataType::i32});
      first.op = one_of(random_, {ReduceOp::sum, ReduceOp::average});
      if (kind == CollectiveKind::allgather) first.op = ReduceOp::sum;
      const auto members = random_.between(1, 3);
      for (int64_t member = 0; member < members; ++member) {
        Operation operation = first;
        operation.kind = kind;
        operation.name = fmt::format("{}.{}", name, member);
        draw_shape(operation);
        item.operations.push_back(std::move(operation));
      }
    } else {
      item.operations = {draw_operation(name)};
    }
    return item;
  }

  // Changes one item in one step, on all ranks or on one. plan_fuzz.h has similar events.
  struct Event {
    enum Kind { nothing, missing, added, reshaped, late, count, other_by_one, missing_by_one };
    Kind kind = nothing;
    size_t item = 0;
    int rank = 0;
    int64_t rows = 1;
    uint64_t choice = 0;
  };
  Event draw_event() {
    Event event;
    if (on_.deviates && random_.chance(400))
      event.kind = static_cast<Event::Kind>(random_.below(Event::count));
    if (event.kind == Event::late && !on_.pauses) event.kind = Event::nothing;
    if (on_.disagrees && random_.chance(250)) event.kind = Event::other_by_one;
    if (on_.lacks && random_.chance(200)) event.kind = Event::missing_by_one;
    event.item = random_.below(items_.size());
    event.rank = any_rank();
    event.rows = random_.between(1, 16);
    event.choice = random_.next();
    return event;
  }

  // Makes the operation of one rank differ from that of the others.
  static void make_odd(Operation& operation, const Event& event, int size) {
    operation.splits.clear();
    switch (operation.kind == CollectiveKind::barrier ? 4 : event.choice % 5) {
      case 0:
        operation.dtype = operation.dtype == DataType::f64 ? DataType::f32 : DataType::f64;
        if (operation.op > ReduceOp::product) operation.op = ReduceOp::sum;
        break;
      case 1:
        operation.rows = operation.rows + 1;
        break;
      case 2:
        operation.width = operation.width + 2;
        break;
      case 3:
        if (reduces(operation.kind))
          operation.op = operation.op == ReduceOp::sum ? ReduceOp::max : ReduceOp::sum;
        else if (operation.kind != CollectiveKind::send)
          operation.root = (operation.root + 1) % size;
        break;
      default:
        if (operation.kind == CollectiveKind::send) break;
        operation.kind = operation.kind == CollectiveKind::allreduce ? CollectiveKind::allgather
                                                                     : CollectiveKind::allreduce;
        operation.op = ReduceOp::sum;
        operation.rows = std::max<int64_t>(operation.rows, 1);
        if (operation.dtype == DataType::raw) operation.dtype = DataType::f32;
        break;
    }
  }

  void submit(int rank, const Item& item, uint32_t contents, std::vector<Action>& actions) {
    Action next = action(Action::Kind::submit);
    next.operations = item.operations;
    for (auto& operation : next.operations) operation.contents = contents;
    auto& first = next.operations.front();
    switch (item.way) {
      case Item::Way::single:
        break;
      case Item::Way::group:
        next.text = first.name.substr(0, first.name.find('.'));
        break;
      case Item::Way::ring: {
        const int to = (rank + item.shift) % size_, from = (rank + size_ - item.shift) % size_;
        Operation received = first;
        const std::string name = first.name;
        first.name = fmt::format("{}from{}", name, rank);
        first.root = to;
        received.kind = CollectiveKind::recv;
        received.name = fmt::format("{}from{}", name, from);
        received.root = from;
        next.operations.push_back(std::move(received));
        break;
      }
      case Item::Way::pair:
        if (rank != item.sender && rank != item.to) return;
        if (rank == item.to) first.kind = CollectiveKind::recv;
        first.root = rank == item.to ? item.sender : item.to;
        break;
      case Item::Way::from_any: {
        const int receiver = first.root;
        if (rank != receiver) break;
        // The receives come one after another, because a name may be pending only once. The sends
        // of the other ranks wait for their turn.
        first.kind = CollectiveKind::recv;
        first.root = kAnyRank;
        for (int sender = 0; sender + 1 < size_; ++sender) {
          actions.push_back(next);
          actions.push_back(action(Action::Kind::wait, first.name));
        }
        return;
      }
    }
    actions.push_back(std::move(next));
  }

  void draw_step(int step) {
    const Event event = draw_event();
    const auto contents = static_cast<uint32_t>(step + 1);
    std::vector<Item> items = items_;
    if (event.kind == Event::missing) items.erase(items.begin() + static_cast<int64_t>(event.item));
    if (event.kind == Event::added) items.push_back(draw_item(fmt::format("n{}", step)));
    if (event.kind == Event::reshaped)
      for (auto& operation : items[event.item].operations) {
        if (operation.kind == CollectiveKind::barrier) continue;
        operation.rows = event.rows;
        operation.splits.clear();
      }
    const bool blocks = on_.blocking && random_.chance(500);
    // With receives from any rank the blocking call comes last: its receiver may wait for a message
    // of the sender before it blocks too.
    const bool blocks_first = random_.chance(500) && !on_.from_any;
    const Item blocking = blocks ? draw_blocking(step) : Item();
    // One rank uses a named call where the others block.
    const bool mixes = blocks && on_.mixes && blocking.way == Item::Way::single;
    by_name_ = mixes && random_.chance(300) ? any_rank() : -1;
    for (int rank = 0; rank < size_; ++rank) {
      Random own(Random::mix(event.choice + static_cast<uint64_t>(rank)));
      if (closes_at_ == step && closer_ == rank)
        add(rank, action(Action::Kind::close, event.choice % 3 == 0 ? "" : "it_failed"));
      if (on_.joins && joins_at_ == step && rank == joins_early_) {
        // A rank with pairs must not close now: its pair would be released while the other rank
        // still uses it.
        const bool goes = on_.hurries && !on_.pairs && !on_.from_any && event.choice % 4 == 0;
        add(rank, action(Action::Kind::join, goes ? "on" : ""));
        if (goes) add(rank, action(Action::Kind::close));
        if (on_.hurries && !goes) add(rank, action(Action::Kind::wait));
      }
      if (on_.joins && joins_at_ <= step && rank == joins_early_) continue;
      const bool comes_last = comes_last_ && step + 1 == joins_at_ && rank == joins_early_;
      const bool is_late = step == joins_at_ && rank == late_after_join_;
      if (comes_last || is_late || (event.kind == Event::late && event.rank == rank))
        add(rank, action(Action::Kind::pause, "", is_late ? kSecond : draw_pause(own)));
      std::vector<std::vector<Action>> parts;
      for (size_t i = 0; i < items.size(); ++i) {
        Item item = items[i];
        const bool mine = i == event.item && rank == event.rank;
        if (mine && event.kind == Event::missing_by_one && item.way != Item::Way::from_any)
          continue;
        if (mine && event.kind == Event::other_by_one && item.way != Item::Way::from_any)
          make_odd(item.operations.front(), event, size_);
        submit(rank, item, contents, parts.emplace_back());
      }
      if (on_.shuffles) shuffle(parts, own);
      // Parts that wait for other ranks come last, behind the parts that the other ranks may wait
      // for.
      std::stable_sort(parts.begin(), parts.end(), [](const auto& one, const auto& other) {
        return one.size() < other.size();
      });
      for (auto& part : parts)
        for (auto& next : part) add(rank, std::move(next));
      if (on_.memory && step == 2) add(rank, action(Action::Kind::retire));
      if (blocks && blocks_first) add_blocking(rank, blocking, contents);
      if (on_.waits_for_one && !parts.empty() && own.chance(500)) {
        // Waits for the name of the last submit.
        auto& script = ranks_[static_cast<size_t>(rank)].front();
        for (auto at = script.rbegin(); at != script.rend(); ++at)
          if (at->kind == Action::Kind::submit) {
            const std::string name = at->text.empty() ? at->operations.front().name : at->text;
            add(rank, action(Action::Kind::wait, name));
            break;
          }
      }
      // A rank that is out of data may join while its last operations are under way.
      const bool joins_now =
          on_.joins && on_.hurries && !on_.closes && rank == joins_early_ && step + 1 == joins_at_;
      if (!joins_now) add(rank, action(Action::Kind::wait));
      if (blocks && !blocks_first) add_blocking(rank, blocking, contents);
    }
  }

  Micros draw_pause(Random& random) {
    return one_of<Micros>(random, {500, 20000, kSecond / 5, 3 * kSecond});
  }

  Item draw_blocking(int step) {
    Item item;
    if (on_.pairs && random_.chance(400)) {
      item.way = Item::Way::ring;
      item.shift = static_cast<int>(random_.between(1, size_ - 1));
      item.operations = {draw_moved(fmt::format("b{}", step % 2))};
    } else {
      item.operations = {draw_operation(fmt::format("b{}", step % 2))};
      // A blocking alltoall has equal parts.
      if (item.operations[0].kind == CollectiveKind::alltoall) {
        item.operations[0].splits.clear();
        item.operations[0].rows = size_ * random_.between(1, 5);
      }
    }
    return item;
  }
  void add_blocking(int rank, const Item& item, uint32_t contents) {
    std::vector<Action> actions;
    submit(rank, item, contents, actions);
    for (auto& next : actions) {
      if (rank != by_name_) next.kind = Action::Kind::block;
      add(rank, std::move(next));
    }
    if (rank == by_name_) add(rank, action(Action::Kind::wait));
  }

  // A second thread of each rank has its own steps.
  void draw_second_scripts() {
    std::vector<Operation> operations;
    for (int64_t i = 0, n = random_.between(1, 2); i < n; ++i)
      operations.push_back(draw_operation(fmt::format("u{}", i)));
    const auto steps = random_.between(1, 4);
    for (auto& scripts : ranks_) {
      Script script;
      for (int64_t step = 0; step < steps; ++step) {
        Action next = action(Action::Kind::submit);
        next.operations = operations;
        for (auto& operation : next.operations)
          operation.contents = static_cast<uint32_t>(step + 1);
        script.push_back(std::move(next));
        script.push_back(action(Action::Kind::wait));
      }
      scripts.push_back(std::move(script));
    }
  }

  template <class T>
  static void shuffle(std::vector<T>& values, Random& random) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random.below(i)]);
  }

  Random& random_;
  const Features on_;
  const int size_, far_, scale_;
  std::vector<Item> items_;
  std::vector<std::vector<Script>> ranks_;
  int moves_on_at_ = 0, joins_at_ = 0, joins_early_ = 0, closes_at_ = -1, closer_ = 0,
      late_after_join_ = -1;
  bool comes_last_ = false;
  int by_name_ = -1;
};

}  // namespace

Case draw(uint64_t seed, const DrawOptions& options) {
  Case drawn;
  Random world(seed, kWorld), program(seed, kProgram), faults(seed, kFaults),
      schedule(seed, kSchedule);
  drawn.world = draw_world(world);
  drawn.ranks = Program(drawn.world, program, options).draw();
  if (options.tier == Tier::bytes) draw_streams(drawn, seed);
  if (options.tier == Tier::shared) draw_memory(drawn, seed);
  if (!options.without_faults) draw_faults(drawn, faults);
  drawn.world.salt = schedule.next() & 0xffffffff;
  return drawn;
}

}  // namespace tutti::simulation
