#include "tests/plan/made_traces.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace lowtide::testing {
namespace {

constexpr std::uint64_t kMicrosecond = 1000;

// Keeps a list of backward closures, as autograd does.
class Net {
 public:
  Trace trace;

  StorageId weight(Bytes bytes) { return trace.add_source(bytes); }
  StorageId op(std::uint64_t us, Bytes bytes, std::initializer_list<StorageId> reads) {
    const StorageId out = trace.add_storage(bytes);
    trace.run(us * kMicrosecond, {reads.begin(), reads.size()}, {{out}});
    return out;
  }
  void on_backward(std::function<void()> step) { backward_.push_back(std::move(step)); }
  void backward() {
    for (auto step = backward_.rbegin(); step != backward_.rend(); ++step) (*step)();
    for (const StorageId gradient : pins_) trace.pin(gradient);
  }
  void keep(StorageId gradient) { pins_.push_back(gradient); }

 private:
  std::vector<std::function<void()>> backward_;
  std::vector<StorageId> pins_;
};

}  // namespace

Trace unit_chain(int length) {
  Trace trace;
  std::vector<StorageId> forward;
  StorageId last = trace.add_source(0);
  for (int i = 0; i < length; ++i) {
    forward.push_back(trace.add_storage(1));
    trace.run(1'000'000, {{last}}, {{forward.back()}});
    last = forward.back();
  }
  StorageId gradient;
  for (int i = length - 1; i >= 0; --i) {
    const StorageId next = trace.add_storage(1);
    std::vector<StorageId> reads{forward[static_cast<std::size_t>(i)]};
    if (gradient.valid()) reads.push_back(gradient);
    trace.run(1'000'000, reads, {{next}});
    if (gradient.valid()) trace.release(gradient);
    trace.release(forward[static_cast<std::size_t>(i)]);
    gradient = next;
  }
  trace.pin(gradient);
  return trace;
}

Trace residual_net(int blocks) {
  Net net;
  constexpr Bytes kWide = 1 << 20;
  StorageId x = net.weight(kWide);
  StorageId gradient;
  for (int i = 0; i < blocks; ++i) {
    const StorageId w = net.weight(36'000);
    const StorageId input = x;
    const StorageId conv = net.op(900, kWide, {input, w});
    const StorageId norm = net.trace.add_storage(kWide);
    const StorageId mean = net.trace.add_storage(256);
    const StorageId spread = net.trace.add_storage(256);
    net.trace.run(200 * kMicrosecond, {{conv}}, {{norm, mean, spread}});
    const StorageId relu = net.op(60, kWide, {norm});
    net.trace.release(norm);
    const StorageId sum = net.op(50, kWide, {relu, input});
    net.on_backward([&net, &gradient, input, w, conv, mean, spread, relu] {
      const StorageId g = gradient;
      const StorageId g_relu = net.op(70, kWide, {g, relu});
      net.trace.release(relu);
      const StorageId g_norm = net.op(250, kWide, {g_relu, conv, mean, spread});
      for (const StorageId done : {g_relu, conv, mean, spread}) net.trace.release(done);
      net.keep(net.op(900, 36'000, {g_norm, input}));
      const StorageId g_conv = net.op(950, kWide, {g_norm, w});
      net.trace.release(g_norm);
      const StorageId g_sum = net.op(50, kWide, {g_conv, g});
      net.trace.release(g_conv);
      net.trace.release(g);
      gradient = g_sum;
    });
    x = sum;
    // The sum is the next block's input; it goes when that block's backward is done.
    net.on_backward([&net, sum, last = i + 1 == blocks] {
      if (!last) net.trace.release(sum);
    });
  }
  gradient = net.op(10, kWide, {x});
  net.trace.release(x);
  net.backward();
  return std::move(net.trace);
}

Trace dense_net(int layers) {
  Net net;
  constexpr Bytes kGrowth = 1 << 18;
  std::vector<StorageId> features{net.weight(2 * kGrowth)};
  std::vector<StorageId> gradients(static_cast<std::size_t>(layers) + 1);
  for (int i = 0; i < layers; ++i) {
    const StorageId w = net.weight(20'000);
    const Bytes wide = kGrowth * static_cast<Bytes>(i + 2);
    const StorageId joined = net.trace.add_storage(wide);
    net.trace.run(static_cast<std::uint64_t>(30 * (i + 2)) * kMicrosecond, features, {{joined}});
    const StorageId norm = net.op(static_cast<std::uint64_t>(60 * (i + 2)), wide, {joined});
    const StorageId out = net.op(static_cast<std::uint64_t>(200 * (i + 2)), kGrowth, {norm, w});
    net.trace.release(joined);
    features.push_back(out);
    net.on_backward([&net, &gradients, norm, out, w, wide, i] {
      const std::size_t at = static_cast<std::size_t>(i) + 1;
      StorageId& g = gradients[at];
      if (!g.valid()) g = net.op(10, kGrowth, {out});
      net.trace.release(out);
      net.keep(net.op(150, 20'000, {g, norm}));
      const StorageId g_norm = net.op(400, wide, {g, w});
      net.trace.release(norm);
      net.trace.release(g);
      for (std::size_t k = 1; k < at; ++k) {
        const StorageId old = gradients[k];
        gradients[k] =
            old.valid() ? net.op(20, kGrowth, {g_norm, old}) : net.op(15, kGrowth, {g_norm});
        if (old.valid()) net.trace.release(old);
      }
      net.trace.release(g_norm);
    });
  }
  net.backward();
  return std::move(net.trace);
}

Trace recurrent_net(int steps) {
  Net net;
  const StorageId w = net.weight(1 << 20);
  StorageId h = net.weight(1 << 14);
  StorageId c = net.weight(1 << 14);
  StorageId g_h;
  StorageId g_w;
  for (int i = 0; i < steps; ++i) {
    const StorageId product = net.op(80, 4 << 14, {h, w});
    StorageId gates[4];
    for (StorageId& gate : gates) {
      const StorageId view = net.trace.add_storage(0, product);
      net.trace.run(2 * kMicrosecond, {{product}}, {{view}});
      gate = net.op(8, 1 << 14, {view});
      net.trace.release(view);
    }
    net.trace.release(product);
    const StorageId old_h = h;
    const StorageId old_c = c;
    const StorageId left = net.op(5, 1 << 14, {gates[0], old_c});
    const StorageId right = net.op(5, 1 << 14, {gates[1], gates[2]});
    c = net.op(5, 1 << 14, {left, right});
    net.trace.release(left);
    net.trace.release(right);
    const StorageId curve = net.op(8, 1 << 14, {c});
    h = net.op(5, 1 << 14, {gates[3], curve});
    net.on_backward([&net, &g_h, &g_w, gates_kept = std::vector<StorageId>(gates, gates + 4), curve,
                     new_c = c, new_h = h, old_h, old_c, w, i] {
      if (!g_h.valid()) g_h = net.op(5, 1 << 14, {new_h});
      net.trace.release(new_h);
      const StorageId g_c = net.op(10, 1 << 14, {g_h, gates_kept[3], curve});
      net.trace.release(curve);
      net.trace.release(new_c);
      const StorageId g_product =
          net.op(40, 4 << 14, {g_c, gates_kept[0], gates_kept[1], gates_kept[2], old_c});
      for (const StorageId gate : gates_kept) net.trace.release(gate);
      net.trace.release(g_c);
      const StorageId part = net.op(80, 1 << 20, {g_product, old_h});
      if (g_w.valid()) {
        const StorageId sum = net.op(30, 1 << 20, {g_w, part});
        net.trace.release(g_w);
        net.trace.release(part);
        g_w = sum;
      } else {
        g_w = part;
      }
      net.trace.release(g_h);
      g_h = net.op(80, 1 << 14, {g_product, w});
      net.trace.release(g_product);
      if (i == 0) net.keep(g_w);
    });
  }
  net.backward();
  return std::move(net.trace);
}

Trace u_net(int depth) {
  Net net;
  const Bytes top = Bytes{1} << 22;
  StorageId gradient;
  std::vector<StorageId> skips;
  std::vector<StorageId> skip_gradients(static_cast<std::size_t>(depth));
  // A convolution and its backward; what it read is let go there.
  const auto convolve = [&](StorageId in, Bytes bytes, std::uint64_t us) {
    const StorageId w = net.weight(50'000);
    const StorageId out = net.op(us, bytes, {in, w});
    net.on_backward([&net, &gradient, in, out, w, us, bytes] {
      net.keep(net.op(us, 50'000, {gradient, in}));
      const StorageId g = net.op(us, bytes, {gradient, w});
      net.trace.release(gradient);
      net.trace.release(out);
      gradient = g;
    });
    return out;
  };
  StorageId x = convolve(net.weight(top / 4), top, 900);
  for (int level = 0; level < depth; ++level) {
    const Bytes bytes = top >> level;
    x = convolve(x, bytes, 2000);
    skips.push_back(x);
    const StorageId pooled = net.op(60, bytes / 4, {x});
    net.on_backward([&net, &gradient, &skip_gradients, level, bytes, pooled, skip = x] {
      StorageId& from_skip = skip_gradients[static_cast<std::size_t>(level)];
      const StorageId g = net.op(70, bytes, {gradient, skip, from_skip});
      net.trace.release(gradient);
      net.trace.release(from_skip);
      net.trace.release(pooled);
      gradient = g;
    });
    x = convolve(pooled, bytes / 2, 1000);
  }
  for (int level = depth - 1; level >= 0; --level) {
    const Bytes bytes = top >> level;
    const StorageId skip = skips[static_cast<std::size_t>(level)];
    const StorageId up = net.op(80, bytes, {x});
    const StorageId joined = net.op(120, 2 * bytes, {up, skip});
    net.trace.release(up);
    net.on_backward([&net, &gradient, &skip_gradients, level, bytes, joined] {
      skip_gradients[static_cast<std::size_t>(level)] = net.op(40, bytes, {gradient});
      const StorageId g = net.op(60, bytes, {gradient});
      net.trace.release(gradient);
      net.trace.release(joined);
      gradient = g;
    });
    x = convolve(joined, bytes, 2400);
  }
  gradient = net.op(20, top, {x});
  net.backward();
  return std::move(net.trace);
}

Trace tree_net(int depth) {
  Net net;
  constexpr Bytes kCell = 1 << 13;
  const StorageId w = net.weight(1 << 18);
  StorageId g_w;
  struct Node {
    StorageId h;
    std::vector<StorageId> gates;
    int left = -1;
    int right = -1;
    StorageId gradient;
  };
  std::vector<Node> nodes;
  const std::function<int(int)> build = [&](int level) {
    Node node;
    if (level > 0) {
      node.left = build(level - 1);
      node.right = build(level - 1);
    }
    StorageId sum = net.weight(kCell);
    if (level > 0) {
      const StorageId left = nodes[static_cast<std::size_t>(node.left)].h;
      const StorageId right = nodes[static_cast<std::size_t>(node.right)].h;
      sum = net.op(12, kCell, {left, right});
    }
    for (int i = 0; i < 4; ++i) {
      const StorageId product = net.op(30, kCell, {sum, w});
      node.gates.push_back(net.op(10, kCell, {product}));
      net.trace.release(product);
    }
    node.h = net.op(14, kCell, {node.gates[0], node.gates[1], node.gates[2], node.gates[3]});
    if (level > 0) net.trace.release(sum);
    nodes.push_back(node);
    return static_cast<int>(nodes.size()) - 1;
  };
  build(depth);
  nodes.back().gradient = net.op(10, kCell, {nodes.back().h});
  for (std::size_t i = nodes.size(); i-- > 0;) {
    Node& node = nodes[i];
    const StorageId g = net.op(
        20, 4 * kCell, {node.gradient, node.gates[0], node.gates[1], node.gates[2], node.gates[3]});
    for (const StorageId gate : node.gates) net.trace.release(gate);
    const StorageId part = net.op(40, 1 << 18, {g, node.h});
    if (g_w.valid()) {
      const StorageId sum = net.op(15, 1 << 18, {g_w, part});
      net.trace.release(g_w);
      net.trace.release(part);
      g_w = sum;
    } else {
      g_w = part;
    }
    if (node.left >= 0) {
      for (const int child : {node.left, node.right}) {
        nodes[static_cast<std::size_t>(child)].gradient = net.op(30, kCell, {g, w});
      }
    }
    net.trace.release(g);
    net.trace.release(node.gradient);
    net.trace.release(node.h);
  }
  net.trace.pin(g_w);
  return std::move(net.trace);
}

Trace random_step(std::mt19937& random, int ops, bool in_place) {
  Trace trace;
  std::vector<StorageId> there;
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  for (int i = 0; i < 2; ++i) there.push_back(trace.add_source(1 + below(8)));
  std::vector<StorageId> made;
  for (int i = 0; i < ops; ++i) {
    std::vector<StorageId> reads;
    for (std::size_t k = 1 + below(3); k > 0; --k) {
      // Mostly what is new, as nets do.
      const std::size_t back =
          below(2) ? below(std::min<std::size_t>(there.size(), 4)) : below(there.size());
      reads.push_back(there[there.size() - 1 - back]);
    }
    std::vector<StorageId> writes;
    if (in_place && below(4) == 0) {
      writes.push_back(reads[0]);
    }
    if (writes.empty() || below(3) == 0) {
      for (std::size_t k = 1 + (below(4) == 0 ? below(3) : 0); k > 0; --k) {
        writes.push_back(trace.add_storage(1 + below(16)));
      }
    }
    trace.run(1000 * (1 + below(50)), reads, writes, below(5) == 0 ? below(6) : 0);
    for (const StorageId id : writes) {
      if (std::find(there.begin(), there.end(), id) == there.end()) {
        there.push_back(id);
        made.push_back(id);
      }
    }
    if (made.size() > 3 && below(2) == 0) {
      const std::size_t at = below(made.size() - 1);
      const StorageId gone = made[at];
      made.erase(made.begin() + static_cast<std::ptrdiff_t>(at));
      there.erase(std::find(there.begin(), there.end(), gone));
      trace.release(gone);
    }
  }
  for (std::size_t i = 0; i < made.size(); i += 2) trace.pin(made[i]);
  return trace;
}

}  // namespace lowtide::testing
