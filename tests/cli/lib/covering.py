"""covering.py - a covering array: rows in which every pair of values of two dimensions occurs.

A dimension is {value: text}. The first dimensions are bound by rules; values of the others go with
everything. The same arguments give the same rows."""
import itertools


def pairs_of(row):
    return itertools.combinations(row, 2)


class Covering:
    """rows: tuples of (dimension, value), one of each dimension. wanted: the pairs that can occur.
    reasons: of every pair that some row cannot have, why."""

    def __init__(self, bound, free, refusal, is_cheap):
        """refusal(row as dict of bound values): why it cannot run, or None. is_cheap(the same): such rows are
        taken where there is a choice."""
        self.bound, self.free, self.dimensions = bound, free, {**bound, **free}
        self.refusal, self.is_cheap = refusal, is_cheap
        self.rows, self.reasons = [], {}
        self._bound_rows = self._possible_rows()
        self._order = self._all_pairs()
        self.wanted = set(self._order)
        missing = set(self._order)
        while missing:
            row = self._best_row(missing)
            self.rows.append(row)
            missing -= set(pairs_of(row))

    def _possible_rows(self):
        """Every way to choose the bound dimensions: those that run; of every pair, why the others do not."""
        runs = []
        for values in itertools.product(*self.bound.values()):
            items = tuple(zip(self.bound, values))
            why = self.refusal(dict(items))
            if why is None:
                runs.append(items)
            else:
                for p in pairs_of(items):
                    self.reasons.setdefault(p, []).append(why)
        return runs

    def _all_pairs(self):
        """The pairs that can occur, by definition: of two bound values those of some row that runs; all
        others."""
        can = {p for row in self._bound_rows for p in pairs_of(row)}
        values = [(d, v) for d in self.dimensions for v in self.dimensions[d]]
        return [(a, b) for a, b in itertools.combinations(values, 2)
                if a[0] != b[0] and ((a, b) in can or b[0] not in self.bound)]

    def _best_row(self, missing):
        """A row with the last missing pair, and otherwise with the most missing ones.
        Ties go to the later value, which is rarely the plain one."""
        first = dict(next(p for p in reversed(self._order) if p in missing))
        free = {d: [first[d]] if d in first else list(v)[::-1] for d, v in self.free.items()}

        def pairs_with(items, value):
            return sum((x, value) in missing for x in items)

        def worth(items):
            own = sum(p in missing for p in pairs_of(items))
            return own + sum(max(pairs_with(items, (d, v)) for v in free[d]) for d in free)

        pool = [items for items in reversed(self._bound_rows)
                if all(first.get(d, v) == v for d, v in items)]
        row = max([items for items in pool if self.is_cheap(dict(items))] or pool, key=worth)
        for d in free:
            row += (max(((d, v) for v in free[d]), key=lambda x: pairs_with(row, x)),)
        return row

    def report(self, read_back, lines):
        """Prints "# WORDS" about each pair that no run can have, and the count of pairs, which is taken from
        the printed lines alone: read_back(line) gives their values. Returns 1 where a pair is missing."""
        seen = set()
        for text in lines:
            r = read_back(text)
            seen |= set(pairs_of(tuple((d, r[d]) for d in self.dimensions)))
        for (a, b), why in sorted(self.reasons.items(), key=str):
            if (a, b) not in self.wanted:
                print(f"# never: {a[0]} {a[1]}, {b[0]} {b[1]}: {max(sorted(set(why)), key=why.count)}")
        print(f"# {len(self.rows)} runs, {len(seen & self.wanted)} of {len(self.wanted)} pairs")
        return bool(self.wanted - seen)
