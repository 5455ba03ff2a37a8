-- +goose Up
-- A list of columns is no call, and neither is a type with its length.
CREATE TABLE onceward.t (a varchar(3) NOT NULL DEFAULT lower('X') CHECK (a IN ('x')), b bit(2), PRIMARY KEY (a)) PARTITION BY RANGE (a);
CREATE INDEX t_b ON onceward.t (a, b);
