"""Rules by which every importer, and Python for arrays, reads a graph.

rows        Row i of an array, and line i of a table without ids, is node i's, counted from 0. A table with a
            column of ids (called id or node, or told by --id-column) may have its rows in any order.
ids         Nodes are numbers 0..n-1. In lists of edges they may be words, if one is no number or has a
            leading zero, or whole numbers that leave more than half of 0..n-1 unused: then they are numbered
            in ascending order, or as --node-list lists them, and the store keeps their ids, by which
            predictions are written. Tables then need ids too, unless there is a --node-list. --ids says which
            kind it is. Whole numbers may be written as 4.0 or 4e+05, unless digits may be missing (1.2e+09).
            Words for nothing, such as NULL, nan or an empty one, are no ids unless a --node-list
            has them. A node that is unknown or listed twice is an error with its line; one without a row of
            features has zeros, with a warning, and one without a label has none. Tables of features and
            labels with ids may have nodes without edges, with a warning, unless there is a --node-list.
edges       Source, then target. An edge from s to t is the entry A[t, s], so node t takes from node s. Entry
            (i, j) of a matrix in a file is A[i, j], and no edge if it is zero. Sources and targets are
            columns called source and target, src and dst, from and to, head and tail, among others; or the
            only two, or two alike before one of numbers, which has weights. Others are refused:
            --source-column and --target-column say which. An index (a first column without a name) is none of
            them.
repeats     Of an edge that comes several times one is kept, with the largest weight. Entries of one place in
            a matrix add up, and zeros that it stores are no edges.
directions  --directed and --undirected decide. Else a graph that lists the reverse of every edge, with equal
            weight, is undirected. Of the others lists of edges (text, Parquet) and Planetoid are taken as
            undirected: every edge gets its reverse. Matrices and edge_index (.mtx, .npz, .pt, OGB, arrays in
            Python) are directed as they are; OGB's products and proteins are undirected.
loops       Self-loops are kept, and every node gets one that has none (but with --no-self-loops).
weights     All are 1, unless --weights takes those of the source.
classes     Labels are numbered in sorted order, by value if all are whole numbers; those below 0, NaN and
            nothing are no label, nor are the words NA, N/A, null and none. Arrays of whole numbers are
            classes as they are.
            The column of labels is the only one beside the ids, or called label, labels, class, target, y,
            page_type or ml_target; or all are 0 and 1, a column for each class. Rows of 0 and 1, or names
            between semicolons (a;c), are several classes of a node if some row has several; else each is a
            class, with a warning, unless --multilabel keeps the rows.
features    Dense or sparse, as they come; the store keeps sparse ones where that takes half the bytes. In
            sparse ones a column that comes twice for a node is an error. Numbers must be finite.
split       train, val, test or none, or numbers: 0 none, 1 train, 2 validation, 3 test. In tables 1, 2 and 3
            must all be there, in arrays 3, as 0, 1 and 2 may be meant for train, val and test.
columns     Options and usual names say which column is which. Else the first has the ids, and the only other
            one the values. An index has ids where it has each node's number, as in Parquet; it is no feature.
            The summary names the columns that were taken, and those that were left.
text        The separator is the tab, semicolon, comma or blank that cuts all lines evenly, or --separator. A
            first line without any number is a header; in a list of words it is an edge if its words come
            again. Lines with # or % before the first row are comments; --comments # leaves out what is behind
            it.
directories Files beside edges belong to them by their names, alone or behind that of the edges, in any case:
            features or x, labels, y or target, split, nodes; NAME.json has features.
"""
