"""Nearest neighbours among exported vectors, by faiss: neighbours.py FOLDER QUERIES ITEMS K ID...
prints, for each id of the queries, a line with the ids of the K items of the largest inner product."""
import os
import sys

import faiss
import numpy as np


def load(folder, name):
    vectors = np.load(os.path.join(folder, name + ".npy"))
    ids = np.load(os.path.join(folder, name + ".ids.npy"))
    return vectors, ids


def main():
    folder, queries, items, k = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    vectors, ids = load(folder, items)
    index = faiss.IndexIDMap(faiss.IndexFlatIP(vectors.shape[1]))
    index.add_with_ids(vectors, ids.astype(np.int64))
    asked, asked_ids = load(folder, queries)
    place = {int(i): n for n, i in enumerate(asked_ids)}
    rows = asked[[place[int(i)] for i in sys.argv[5:]]]
    for found in index.search(rows, k)[1]:
        print(" ".join(str(i) for i in found))


if __name__ == "__main__":
    main()
