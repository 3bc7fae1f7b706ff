#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace tutti {

/// A first-in-first-out list of nodes, linked by the nodes' own `next` and `before`. A node is in
/// at most one such list. The list does not own its nodes and allocates nothing.
template <class Node>
class NodeQueue {
 public:
  bool empty() const { return first_ == nullptr; }
  Node* front() const { return first_; }
  void push(Node* node) {
    node->next = nullptr;
    node->before = last_;
    (last_ ? last_->next : first_) = node;
    last_ = node;
  }
  void remove(Node* node) {
    (node->before ? node->before->next : first_) = node->next;
    (node->next ? node->next->before : last_) = node->before;
    node->next = node->before = nullptr;
  }
  Node* pop() {
    Node* node = first_;
    if (node) remove(node);
    return node;
  }

 private:
  Node* first_ = nullptr;
  Node* last_ = nullptr;
};

/// A hash table of nodes, chained through the nodes' own links. find() returns the oldest node of
/// (peer, tag, key). All nodes of a tag are in one hash bucket.
template <class Node>
class MatchTable {
 public:
  MatchTable() : buckets_(64) {}

  size_t size() const { return size_; }
  void add(Node* node) {
    if (size_ >= buckets_.size()) grow();
    bucket(node->tag).push(node);
    ++size_;
  }
  void remove(Node* node) {
    bucket(node->tag).remove(node);
    --size_;
  }
  Node* find(int peer, uint64_t tag, uint32_t key) const {
    for (Node* node = bucket(tag).front(); node; node = node->next)
      if (node->tag == tag && node->key == key && node->peer == peer) return node;
    return nullptr;
  }
  /// Returns whether any node of this tag meets the condition.
  template <class Condition>
  bool any(uint64_t tag, Condition condition) const {
    for (Node* node = bucket(tag).front(); node; node = node->next)
      if (node->tag == tag && condition(*node)) return true;
    return false;
  }
  /// Calls visit(node) for every node. The call may remove that node.
  template <class Visit>
  void for_each(Visit visit) {
    for (auto& queue : buckets_)
      for (Node* node = queue.front(); node;) {
        Node* next = node->next;
        visit(node);
        node = next;
      }
  }

 private:
  using Bucket = NodeQueue<Node>;
  size_t index(uint64_t tag) const {
    return static_cast<size_t>((tag * 0x9e3779b97f4a7c15u) >> 32) & (buckets_.size() - 1);
  }
  Bucket& bucket(uint64_t tag) { return buckets_[index(tag)]; }
  const Bucket& bucket(uint64_t tag) const { return buckets_[index(tag)]; }
  void grow() {
    std::vector<Bucket> old(buckets_.size() * 2);
    old.swap(buckets_);
    for (auto& queue : old)
      while (Node* node = queue.pop()) bucket(node->tag).push(node);
  }

  std::vector<Bucket> buckets_;
  size_t size_ = 0;
};

/// A pool of nodes that are made once and then reused. A node's address never changes. The pool
/// counts its allocations in `allocations`.
template <class Node>
class NodePool {
 public:
  /// Makes the first nodes. They do not count as allocations.
  explicit NodePool(uint64_t& allocations) : allocations_(allocations) {
    constexpr int kFirst = 128;
    for (int i = 0; i < kFirst; ++i) give_back(make());
  }

  /// Returns a node as its last user left it, or a new node. An empty pool doubles, so a varying
  /// load soon needs no more allocations.
  Node* take() {
    if (free_.empty()) {
      ++allocations_;
      for (size_t i = nodes_.size(); i > 0; --i) give_back(make());
    }
    Node* node = free_.back();
    free_.pop_back();
    return node;
  }
  void give_back(Node* node) {
    if (free_.capacity() < nodes_.size()) free_.reserve(nodes_.size() * 2);
    free_.push_back(node);
  }
  Node* at(uint32_t index) { return index < nodes_.size() ? &nodes_[index] : nullptr; }
  template <class Visit>
  void for_each(Visit visit) {
    for (auto& node : nodes_) visit(node);
  }

 private:
  Node* make() {
    Node& node = nodes_.emplace_back();
    node.index = static_cast<uint32_t>(nodes_.size() - 1);
    return &node;
  }

  std::deque<Node> nodes_;
  std::vector<Node*> free_;
  uint64_t& allocations_;
};

}  // namespace tutti
