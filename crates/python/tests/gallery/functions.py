"""Functions as people write them in tutorials. `SHARED` must be shared, `PLAIN` must not."""

from __future__ import annotations

import collections
import csv
import io
import json
import math
import re
import statistics
import string

try:
    import numpy as np
except ImportError:  # the gallery of plain Python still runs
    np = None
try:
    import pandas as pd
except ImportError:
    pd = None

SHARED, PLAIN = [], []


def shared(*arguments, needs=None):
    return lambda f: SHARED.append((f, arguments, needs)) or f


def plain(*arguments, needs=None):
    return lambda f: PLAIN.append((f, arguments, needs)) or f


TEXT = "the quick brown fox jumps over the lazy dog and the cat sat on the mat while it rained".split()
ROWS = [{"name": "ann", "age": 31, "city": "Rome"}, {"name": "bob", "age": 25, "city": "Oslo"},
        {"name": "cia", "age": 47, "city": "Rome"}, {"name": "dan", "age": 19, "city": "Bonn"}]


def is_prime(n):
    if n < 2:
        return False
    for d in range(2, int(math.sqrt(n)) + 1):
        if n % d == 0:
            return False
    return True


def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


# Plain Python.


@shared(30)
def primes(n):
    result = []
    for i in range(n):
        if is_prime(i):
            result.append(i)
    return result


@shared(40)
def primes_comprehension(n):
    return [i for i in range(n) if is_prime(i)]


@shared(20)
def longest_collatz(n):
    return max(range(1, n), key=collatz), max((collatz(i), i) for i in range(1, n))


@shared(12)
def factorials(n):
    table = {}
    for i in range(n):
        table[i] = math.factorial(i)
    return table


@shared(15)
def sum_of_squares(n):
    total = 0
    for i in range(n):
        total += i ** 2
    return total


@shared(200)
def leibniz_pi(n):
    total = 0.0
    for k in range(n):
        total += (-1) ** k / (2 * k + 1)
    return 4 * total


@shared(1.0, 2.0, 64)
def trapezoid(a, b, n):
    h = (b - a) / n
    s = 0.5 * (math.exp(a) + math.exp(b))
    for i in range(1, n):
        s += math.exp(a + i * h)
    return s * h


@shared(TEXT)
def word_lengths(words):
    return {w: len(w) for w in words}


@shared(TEXT)
def word_count(words):
    counts = {}
    for w in words:
        counts.setdefault(w, []).append(1)
    return {w: sum(c) for w, c in counts.items()}


@shared(TEXT)
def word_count_counter(words):
    counts = collections.Counter()
    for w in words:
        counts[w] += 1
    return counts


@shared(TEXT)
def group_by_letter(words):
    groups = collections.defaultdict(list)
    for w in words:
        groups[w[0]].append(w)
    return groups


@shared(TEXT)
def caesar(words):
    return " ".join("".join(string.ascii_lowercase[(ord(c) - 97 + 3) % 26] for c in w) for w in words)


@shared(TEXT)
def palindromes(words):
    found = set()
    for w in words + ["level", "noon"]:
        if w == w[::-1]:
            found.add(w)
    return len(found), sorted(found)


@shared(TEXT)
def vowel_counts(words):
    vowels = "aeiou"
    out = []
    for i, w in enumerate(words):
        n = 0
        for c in w:
            if c in vowels:
                n += 1
        out.append((i, n))
    return out


@shared(TEXT)
def regex_matches(words):
    pattern = re.compile(r"[aeiou]{1}.")
    return [m.group(0) for m in (pattern.search(w) for w in words) if m], [bool(pattern.match(w)) for w in words]


@shared(ROWS)
def report(rows):
    for row in rows:
        print(f"{row['name']:>10} {row['age']:3d}")
    return sum(r["age"] for r in rows) / len(rows)


@shared(ROWS)
def to_json(rows):
    lines = []
    for row in rows:
        lines.append(json.dumps(row, sort_keys=True))
    return "\n".join(lines)


@shared("a,b\n1,2\n3,4\n5,6\n7,8\n")
def parse_csv(text):
    total = 0
    for row in csv.DictReader(io.StringIO(text)):
        total += int(row["a"]) * int(row["b"])
    return total


@shared(6)
def multiplication_table(n):
    table = []
    for i in range(1, n):
        row = []
        for j in range(1, n):
            row.append(i * j)
        table.append(row)
    return table


@shared([[1, 2], [3, 4], [5, 6]], [[1, 0, 2], [0, 1, 3]])
def matrix_product(a, b):
    return [[sum(x * y for x, y in zip(row, col)) for col in zip(*b)] for row in a]


@shared([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
def transpose(m):
    return [[row[i] for row in m] for i in range(len(m[0]))]


@shared([3, 1, 4, 1, 5, 9, 2, 6])
def pairwise_distances(xs):
    return {(i, j): abs(x - y) for i, x in enumerate(xs) for j, y in enumerate(xs) if i < j}


@shared([(0, 0), (3, 4), (6, 8), (1, 1)])
def distances(points):
    out = []
    for (x1, y1), (x2, y2) in zip(points, points[1:] + points[:1]):
        out.append(math.hypot(x2 - x1, y2 - y1))
    return out


@shared(12, 8)
def mandelbrot(width, height):
    rows = []
    for y in range(height):
        line = ""
        for x in range(width):
            z, c = 0j, complex(3.0 * x / width - 2, 2.0 * y / height - 1)
            for _ in range(20):
                if abs(z) > 2:
                    break
                z = z * z + c
            line += "#" if abs(z) <= 2 else "."
        rows.append(line)
    return rows


@shared(8)
def fizzbuzz(n):
    for i in range(1, 2 * n):
        if i % 15 == 0:
            print("FizzBuzz")
        elif i % 3 == 0:
            print("Fizz")
        elif i % 5 == 0:
            print("Buzz")
        else:
            print(i)


@shared([2, 7, 1, 8])
def squares_generator(xs):
    for x in xs:
        yield x * x


@shared(["1", "2", "x", "4", "y"])
def parse_with_errors(texts):
    good, bad = [], []
    for t in texts:
        try:
            value = int(t)
        except ValueError as error:
            bad.append(str(error))
            continue
        good.append(value)
    return good, bad


@shared(["1", "2", "x", "4"])
def parse_and_fail(texts):
    return [int(t) for t in texts]


@shared([4, 8, 15, 16, 23, 42])
def summary(xs):
    mean = statistics.mean(xs)
    return sum((x - mean) ** 2 for x in xs) / len(xs), any(x > 40 for x in xs), all(x > 3 for x in xs)


@shared(5)
def binomials(n):
    return [[math.comb(i, j) for j in range(i + 1)] for i in range(n)]


@shared({"a": [1, 2], "b": [3], "c": []})
def invert(index):
    out = []
    for key, values in index.items():
        out.extend((v, key) for v in values)
    return dict(out)


# numpy.


@shared(6, needs=np)
def eigenvalues(n):
    out = []
    for i in range(n):
        a = np.arange(9.0).reshape(3, 3) + i * np.eye(3)
        out.append(np.linalg.eigvals(a).real.max())
    return out


@shared(5, needs=np)
def fill_rows(n):
    a = np.zeros((n, n))
    for i in range(n):
        a[i] = np.linspace(0, i, n)
    return a


@shared(4, needs=np)
def fill_cells(n):
    a = np.empty((n, n))
    for i in range(n):
        for j in range(n):
            a[i, j] = np.exp(-((i - j) ** 2))
    return a


@shared(6, needs=np)
def accumulate_images(n):
    total = np.zeros((4, 4))
    for i in range(n):
        image = np.sin(np.arange(16.0).reshape(4, 4) * i)
        total += image
    return total / n


@shared(5, needs=np)
def spectra(n):
    out = []
    for i in range(n):
        x = np.cos(np.arange(32) * i)
        out.append(np.fft.rfft(x).max())
    return np.array(out)


@shared(6, needs=np)
def bootstrap_seeded(n):
    data = np.arange(20.0)
    means = []
    for seed in range(n):
        rng = np.random.default_rng(seed)
        means.append(rng.choice(data, size=20).mean())
    return np.std(means)


@shared(5, needs=np)
def row_norms(n):
    x = np.arange(4.0 * n).reshape(n, 4)
    return np.array([np.linalg.norm(row) for row in x]), max(row.sum() for row in x)


@shared(4, needs=np)
def convolve_all(n):
    kernel = np.array([0.25, 0.5, 0.25])
    return {i: np.convolve(np.arange(6) ** i, kernel, mode="same") for i in range(n)}


# pandas and scikit-learn.


@shared(needs=pd)
def group_means():
    df = pd.DataFrame({"g": list("abcab"), "v": [1.0, 2, 3, 4, 5]})
    out = {}
    for name in ["a", "b", "c"]:
        out[name] = df[df["g"] == name]["v"].mean()
    return out


@shared(needs=pd)
def row_labels():
    df = pd.DataFrame({"a": [1, 2, 3, 4], "b": ["w", "x", "y", "z"]})
    labels = []
    for row in df.itertuples(index=False):
        labels.append(f"{row.b}{row.a}")
    df["label"] = labels
    return df


@shared(needs=pd)
def frames():
    parts = []
    for i in range(4):
        parts.append(pd.DataFrame({"i": [i, i], "sq": [i * i, i ** 3]}))
    return pd.concat(parts, ignore_index=True)


def _sklearn():
    try:
        import sklearn

        return sklearn
    except ImportError:
        return None


@shared(needs=_sklearn())
def cross_validate():
    from sklearn.linear_model import Ridge

    x = np.arange(40.0).reshape(20, 2) % 7
    y = x @ np.array([1.0, 2.0]) + 1
    scores = []
    for alpha in [0.01, 0.1, 1.0, 10.0, 100.0]:
        model = Ridge(alpha=alpha)
        model.fit(x[:15], y[:15])
        scores.append((alpha, model.score(x[15:], y[15:])))
    return scores


@shared(needs=_sklearn())
def k_values():
    from sklearn.cluster import KMeans

    x = np.concatenate([np.arange(20.0).reshape(10, 2), 50 + np.arange(20.0).reshape(10, 2)])
    return [KMeans(n_clusters=k, n_init=2, random_state=0).fit(x).inertia_ for k in range(1, 5)]


# What must not be shared.


@plain("aaabbbccd")
def run_lengths(text):
    out, previous, n = [], None, 0
    for c in text:
        if c == previous:
            n += 1
        else:
            if previous is not None:
                out.append((previous, n))
            previous, n = c, 1
    return out + [(previous, n)]


@plain(10)
def fibonacci(n):
    a, b = 0, 1
    out = []
    for _ in range(n):
        out.append(a)
        a, b = b, a + b
    return out


@plain([1, 2, 3, 4])
def running_sum(xs):
    total, out = 0, []
    for x in xs:
        total += x
        out.append(total)
    return out


@plain([5, 3, 8, 1])
def bubble_sort(xs):
    xs = list(xs)
    for i in range(len(xs)):
        for j in range(len(xs) - 1 - i):
            if xs[j] > xs[j + 1]:
                xs[j], xs[j + 1] = xs[j + 1], xs[j]
    return xs


@plain([5, 3, 8, 1], 8)
def find(xs, wanted):
    for i, x in enumerate(xs):
        if x == wanted:
            return i
    return -1


@plain([5, 3, 8, 1])
def first_big(xs):
    found = None
    for x in xs:
        if x > 4:
            found = x
            break
    return found


@plain([3, 1, 3, 2, 1])
def unique(xs):
    seen, out = set(), []
    for x in xs:
        if x not in seen:
            seen.add(x)
            out.append(x)
    return out


@plain([5, 3, 8, 1])
def maximum(xs):
    best = xs[0]
    for x in xs:
        if x > best:
            best = x
    return best


@plain(1.0)
def newton(x):
    for _ in range(6):
        x = x - (x * x - 2) / (2 * x)
    return x


@plain({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []})
def breadth_first(graph):
    order, queue = [], ["a"]
    for node in queue:
        if node in order:
            continue
        order.append(node)
        queue.extend(graph[node])
    return order


@plain([1, 2, 3, 4, 5])
def moving_average(xs):
    window = collections.deque(maxlen=2)
    out = []
    for x in xs:
        window.append(x)
        out.append(sum(window) / len(window))
    return out


@shared(20)
def sieve(n):
    flags = [True] * n
    for i in range(2, n):
        if flags[i]:
            for j in range(i * i, n, i):
                flags[j] = False
    return [i for i in range(2, n) if flags[i]]


@plain(3)
def hanoi(n):
    pegs = {"a": list(range(n, 0, -1)), "b": [], "c": []}

    def move(k, source, target, spare):
        if k:
            move(k - 1, source, spare, target)
            pegs[target].append(pegs[source].pop())
            move(k - 1, spare, target, source)

    for k in range(n, n + 1):
        move(k, "a", "b", "c")
    return pegs


@plain([3, 4, 5])
def stack_machine(numbers):
    stack = [1]
    for n in numbers:
        stack.append(stack.pop() * n)
    return stack


@plain([("deposit", 10), ("withdraw", 30), ("deposit", 5)])
def account(operations):
    class Account:
        balance = 0

    a = Account()
    for kind, amount in operations:
        if kind == "withdraw" and amount > a.balance:
            raise ValueError("insufficient funds", a.balance)
        a.balance += amount if kind == "deposit" else -amount
    return a.balance


@plain([1, 2, 3])
def numbered(xs):
    counter = iter(range(100))
    return [(next(counter), x) for x in xs]


@plain(6)
def memoised(n):
    cache = {0: 0, 1: 1}

    def fib(k):
        if k not in cache:
            cache[k] = fib(k - 1) + fib(k - 2)
        return cache[k]

    return [fib(k) for k in range(2, n)] + list(cache)


@plain(5, needs=np)
def heat(steps):
    u = np.zeros(8)
    u[4] = 1.0
    for _ in range(steps):
        u[1:-1] = u[1:-1] + 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])
    return u


@plain(4, needs=np)
def power_iteration(n):
    a = np.arange(9.0).reshape(3, 3)
    v = np.ones(3)
    for _ in range(n):
        v = a @ v
        v = v / np.linalg.norm(v)
    return v


@plain(needs=pd)
def fill_frame():
    df = pd.DataFrame({"a": [1, 2, 3, 4]})
    for i in range(4):
        df.loc[i, "b"] = df.loc[i, "a"] * 2
    return df


@plain(needs=_sklearn())
def incremental():
    from sklearn.linear_model import SGDRegressor

    model = SGDRegressor(random_state=0)
    for i in range(4):
        model.partial_fit(np.full((2, 1), float(i)), np.array([i, i + 1.0]))
    return model.coef_


@plain([4, 2, 7])
def gradient_descent(xs):
    w = 0.0
    for x in xs * 3:
        gradient = 2 * (w * x - 1) * x
        w -= 0.001 * gradient
    return w


@plain([1, 2, 3])
def context(xs):
    out = []
    for x in xs:
        for y in out:
            x += y
        out.append(x)
    return out
